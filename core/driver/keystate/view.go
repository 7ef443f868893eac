package keystate

import (
	"slices"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

// View returns the state of the record at an instant, for an operator. It changes nothing.
func (r *Record) View(key string, now time.Time) driver.View {
	r = r.Clone()
	r.At(now)
	v := driver.View{Key: key, Token: r.token, Now: now}
	if r.owner != "" {
		v.Holders = append(v.Holders, driver.HolderView{Owner: r.owner, Token: r.token, Left: r.expires.Sub(now)})
	}
	for _, p := range r.places {
		v.Holders = append(v.Holders, driver.HolderView{Owner: p.owner, Token: p.token, Left: p.ends.Sub(now), Place: true})
	}
	switch left := r.reserved.left(now); {
	case left <= 0:
	case r.reserved.offer != "":
		v.Holders = append(v.Holders, driver.HolderView{Owner: r.reserved.offer, Token: r.reserved.token, Left: left})
		r.unlist(r.reserved.to())
	default:
		v.Kept = left
		for _, w := range r.waiting[:min(len(r.waiting), driver.KeptFor)] {
			if !w.Patient() {
				break
			}
			v.KeptFor++
		}
	}
	v.Waiting = r.Waiting()
	return v
}

// Last returns the last token.
func (r *Record) Last() int64 { return r.token }

// Until returns when the last lease ends, or a lock without a holder is kept for no locker any more.
func (r *Record) Until() time.Time {
	switch {
	case r.reserved.lasts > 0:
		return r.reserved.since.Add(r.reserved.lasts)
	case len(r.places) > 0:
		return slices.MaxFunc(r.places, func(a, b place) int { return a.ends.Compare(b.ends) }).ends
	}
	return r.expires
}
