package core_test

import (
	"context"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

// way is how long a message takes.
func (p *member) way() time.Duration {
	switch late := p.w.n(4) == 0; {
	case late && p.w.harm:
		return p.w.upTo(slowMessage)
	case late:
		return p.w.upTo(slowMessage / 10)
	}
	return p.trip / 2
}

// stands is how long the process stands still.
func (p *member) stands() time.Duration {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	return max(0, time.Until(p.until))
}

// hears has a message come to the process, or come twice, or not at all.
func (p *member) hears(message any, tell, lost func()) {
	p.w.note("to %s: %+v", p.id, message)
	n := 1
	if p.w.harm {
		switch p.w.n(20) {
		case 0:
			n, tell = 1, func() { time.AfterFunc(reconnects, lost) }
		case 1:
			n = 2
		}
	}
	for range n {
		if p.ctx.Err() == nil {
			time.AfterFunc(p.way()+p.stands(), tell)
		}
	}
}

// RoundTrip implements [driver.Turns].
func (p *member) RoundTrip() time.Duration { return p.trip }

func (p *member) Acquire(ctx context.Context, req driver.AcquireRequest) (driver.Reply, error) {
	came := req.Late
	req.Late = func(rep driver.Reply, err error) { came(p.w.numbered(rep), err) }
	if came == nil {
		req.Late = nil
	}
	if !p.w.harm || p.w.n(30) > 0 {
		rep, err := p.Store.Acquire(ctx, req)
		return p.w.numbered(rep), err
	}
	// Its connection breaks, it is sent again, and the first copy comes last.
	late := req
	late.Late = func(driver.Reply, error) {}
	time.AfterFunc(p.w.upTo(slowMessage), func() { _, _ = p.Store.Acquire(context.Background(), late) })
	rep, err := p.Store.Acquire(ctx, req)
	rep.Ambiguous = true
	return p.w.numbered(rep), err
}

// Stand implements [driver.Turns].
func (p *member) Stand(ctx context.Context, req driver.AcquireRequest) (driver.Reply, error) {
	rep, err := p.Store.Stand(ctx, req)
	return p.w.numbered(rep), err
}

// Calls implements [driver.Store].
func (p *member) Calls(id string, hear func(driver.Call)) (stop func()) {
	return p.Store.Calls(id, func(c driver.Call) {
		if c.What == driver.Unsure {
			hear(c)
			return
		}
		p.hears(c, func() { hear(c) }, func() { hear(driver.Call{Reached: true}) })
	})
}
