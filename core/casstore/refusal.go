package casstore

import (
	"slices"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

// beats are the names of the beats to look at: of holders that have given no sign of life for their
// lease, and of unknown holders.
func (v *view) beats() (beats []string) {
	for _, h := range v.holds {
		g := v.signs[h.Owner]
		if g.beat.Name != "" && !g.mine && (!g.known || !v.now.Before(g.ends)) && !slices.Contains(beats, g.beat.Name) && len(beats) < mostBeats {
			beats = append(beats, g.beat.Name)
		}
	}
	return beats
}

const (
	// mostBeats is the maximum number of beats that a request reads. The next request reads other beats.
	mostBeats = 20
	// standing divides a lease: when a lock has stood for that part of it, those who wait look whether
	// the holder lives.
	standing = 6
	// farLook is after how long a locker in line looks at a lock that is kept for others. It is called
	// earlier, unless the process that calls has died.
	farLook = time.Second
)

// behindPlaces reports whether the locker that asks wants the lock for itself, and all before it in line want places.
func (v *view) behindPlaces() bool {
	line := v.line.since(v.gone)
	i := slices.IndexFunc(line, func(w listed) bool { return !w.Name.Place() })
	return !v.place && i > 0 && line[i].Name.ID() == v.own
}

// refusal completes the reply to a request that is refused. A locker in line is called: it looks
// whether the holder lives when the lock has stood for a time.
func (v *view) refusal(rep driver.Reply) driver.Reply {
	if rep.Listed && v.rec.Reserved(v.now) {
		rep.TTL = max(rep.TTL, farLook) // it is called when its turn has come
		if v.behindPlaces() {
			rep.TTL = farLook / 3 // to keep others out, when those that were called have their places
		}
	}
	if v.Places && v.place && rep.Listed {
		rep.TTL = v.placeEnds(rep.TTL)
	}
	if owner, _ := v.rec.Offered(v.now); owner != "" && owner == rep.Holder {
		rep.Room = tokens - 1
		if lockerOf(rep.Holder) == v.own && v.own != "" {
			v.mayHold(v.key, rep.Holder, rep.Token, v.at) // its call is late or lost
		}
	}
	if len(v.holds) == 0 || v.holds[0].Owner != rep.Holder {
		return rep
	}
	h := v.holds[0]
	g := v.signs[h.Owner]
	rep.TTL, rep.Note = min(rep.TTL, h.lease()), g.stranger(v.now)
	if rep.Token != 0 {
		rep.Token = h.token()
	}
	switch young := h.lease()/standing - g.stood; {
	case g.mine || !rep.Listed:
	case young > 0:
		rep.TTL = min(rep.TTL, young+time.Millisecond)
	default:
		v.follow(v.key, g.beat.Name)
	}
	return rep
}
