package casstore_test

import (
	"context"
	"fmt"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

// caller is the caller of a process for one key, as far as it waits.
type caller struct {
	turns  chan struct{} // a call says to ask
	offers chan driver.Call
	newest int64    // the token of the last offer; guarded by the mutex of the process
	anchor struct { // a request that was refused: the lock was not offered before
		token int64
		sent  time.Time
	}
	named int64 // an offer that the next request names
}

// waiter is the name of the process in line: without a patience, with it, or taking offers.
func (p *process) waiter(kind driver.Kind) driver.Waiter {
	switch p.style {
	case 0:
		return driver.NewWaiter(p.name, kind, 0)
	case 1:
		return driver.NewWaiter(p.name, kind, p.lease/10)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	w := driver.NewWaiter(p.name, kind, p.lease/10)
	if p.reached && kind == driver.Exclusive {
		w = w.TakingOffers()
	}
	return w
}

// hears takes the calls to the process.
func (p *process) hears(call driver.Call) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch call.What {
	case driver.Unsure:
		p.reached = call.Reached && p.style == 2
		for _, c := range p.callers {
			c.turn()
		}
	case driver.Turn:
		p.callers[call.Key].turn()
	case driver.Offered:
		c := p.callers[call.Key]
		if call.Token <= c.newest {
			return // a call that comes again, or late
		}
		select {
		case <-c.offers: // that offer has ended
		default:
		}
		c.newest = call.Token
		c.offers <- call
	case driver.Wanted, driver.Displaced:
	}
}

// turn has the caller ask.
func (c *caller) turn() {
	select {
	case c.turns <- struct{}{}:
	default:
	}
}

func (p *process) offered(o driver.Call) string { return fmt.Sprintf("%s:%d", p.name, o.Token) }

// refused notes a refusal.
func (c *caller) refused(sent time.Time, reply driver.Reply) {
	if reply.Token > c.anchor.token {
		c.anchor.token, c.anchor.sent = reply.Token, sent
	}
}

// take deals with an offer, as package core does: the caller begins if half of its time is left, or names it.
func (p *process) take(key string, c *caller, o driver.Call, exclusive bool) {
	a := c.anchor
	if c.anchor.token = max(a.token, o.Token); a.sent.IsZero() || o.Token <= a.token {
		p.orphan(key, p.offered(o))
		return
	}
	h := &holder{owner: p.offered(o), until: a.sent.Add(p.trust(driver.OfferLasts))}
	switch {
	case !exclusive:
		p.orphan(key, h.owner)
		return
	case time.Until(h.until) < driver.OfferLasts/2:
		c.named = o.Token
		return
	}
	p.enter(key, o.Token, h)
	p.world.mu.Lock()
	p.begun++
	p.world.mu.Unlock()
	if p.draw() < 0.5 {
		p.work.Go(func() { p.keep(key, o.Token, h) })
	}
	for end := time.Now().Add(p.upTo(p.lease)); time.Now().Before(end) && time.Now().Before(h.until); {
		time.Sleep(min(time.Until(end), p.lease/3))
		sent, lost := time.Now(), false
		ctx, cancel := context.WithTimeout(context.Background(), p.lease/6)
		p.store.Renew(ctx, []driver.Renewal{{Key: key, Owner: h.owner, TTL: p.lease}}, func(_ int, _ bool, err error) {
			lost = err == nil && !p.extend(key, h, later(h.until, sent.Add(p.trust(p.lease)))) || isLost(err)
		})
		if cancel(); lost {
			break
		}
	}
	p.exit(key, h)
	p.release(key, h.owner, false)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
