package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/interlock-go/interlock/core/reason"
)

const (
	processes = 3 // how often the bank runs, each time with a locker and connections of its own

	readers = 30 // clients that ask for reports, one after another
	writers = 5  // clients that transfer meanwhile
	each    = 5  // reports of each reader

	rated = 60 // clients that ask for a rating at once
)

// together is the outcome of requests that may run at the same time: of reports, which
// share their accounts, or of ratings, of which the partner allows few.
type together struct {
	title   string
	guarded bool // they shared a lock, or had a permit
	asked   int
	done    int
	by      map[string]int // done, by front end
	refused int            // no lock or no permit in time
	failed  error          // one of any other answers

	most      int // were under way at once
	meanwhile int // transfers that were made
	wrong     int // sums that were never there, or calls above the contract
	waits     []time.Duration
}

// broken describes the promises that were not kept.
func (r together) broken() error {
	switch {
	case r.failed != nil:
		return fmt.Errorf("%s: %w", r.title, r.failed)
	case !r.guarded:
		return nil
	case r.wrong > 0:
		return fmt.Errorf("%s: %d wrong", r.title, r.wrong)
	case r.done == 0:
		return fmt.Errorf("%s: no request was served", r.title)
	}
	return nil
}

// note counts the answer to one request.
func (r *together) note(c client, a reply) {
	r.asked++
	switch {
	case a.done():
		r.done++
		r.by[c.frontend()]++
	case a.reason == string(reason.Held) || a.reason == string(reason.Full):
		r.refused++
	default:
		r.failed = fmt.Errorf("a request was answered: %w", a.failure())
	}
}

// withoutGuard returns the clients that ask without the lock or the permit. The proto
// has no such methods: a lock that belongs to the interface cannot be forgotten.
func withoutGuard(all []client) (unsafe []client) {
	for _, c := range all {
		if rest, ok := c.(*restClient); ok {
			unsafe = append(unsafe, unlocked{rest})
		}
	}
	return unsafe
}

// reports asks all processes for the sum of two accounts, while money moves between
// them through all processes.
func (d *demonstration) reports(ctx context.Context, r together, through []client) (together, error) {
	if err := d.openAccounts(ctx, d.alice, d.bob); err != nil {
		return r, err
	}
	r.by = make(map[string]int)
	d.waits.reset()
	d.reporting.reset()
	var mu sync.Mutex
	var reading, writing sync.WaitGroup
	begun, read := make(chan struct{}), make(chan struct{})
	moving := sync.OnceFunc(func() { close(begun) })
	for i := range readers {
		reading.Go(func() {
			<-begun
			for n := range each {
				c := through[(i+n)%len(through)]
				a := settled(ctx, func() reply { return c.report(ctx, d.alice, d.bob) })
				mu.Lock()
				r.note(c, a)
				if a.done() && a.sum != 2*openingBalance {
					r.wrong++
				}
				mu.Unlock()
			}
		})
	}
	for i := range writers {
		writing.Go(func() {
			c, from, to := d.everywhere[i%len(d.everywhere)], d.alice, d.bob
			for {
				select {
				case <-read:
					return
				default:
				}
				a := settled(ctx, func() reply { return c.transfer(ctx, from, to, 1) })
				mu.Lock()
				switch {
				case a.done():
					r.meanwhile++
				case a.reason != string(reason.Held) && a.reason != "outcome-unknown":
					r.failed = fmt.Errorf("a transfer was answered: %w", a.failure())
				}
				mu.Unlock()
				moving() // the reports begin
				from, to = to, from
			}
		})
	}
	reading.Wait()
	close(read)
	writing.Wait()
	r.most = d.reporting.counts().most
	r.waits = d.waits.sorted("shared")
	return r, ctx.Err()
}

// rate asks all processes for ratings at once. The partner counts the calls.
func (d *demonstration) rate(ctx context.Context, r together, through []client) (together, error) {
	r.by = make(map[string]int)
	d.waits.reset()
	d.partner.calls.reset()
	replies := make([]reply, rated)
	by := func(i int) client { return through[i%len(through)] }
	var wg sync.WaitGroup
	for i := range rated {
		wg.Go(func() {
			replies[i] = settled(ctx, func() reply { return by(i).rate(ctx, d.alice) })
		})
	}
	wg.Wait()
	for i, a := range replies {
		r.note(by(i), a)
	}
	n := d.partner.calls.counts()
	r.most, r.wrong, r.waits = n.most, n.above, d.waits.sorted("permit")
	return r, ctx.Err()
}

// runTogether does both without and with the lock or the permit.
func (d *demonstration) runTogether(ctx context.Context) (reports, ratings []together, err error) {
	unsafe := withoutGuard(d.everywhere)
	for _, run := range []struct {
		results *[]together
		title   string
		do      func(context.Context, together, []client) (together, error)
		through []client
	}{
		{&reports, "no lock", d.reports, unsafe},
		{&reports, "shared lock", d.reports, d.everywhere},
		{&ratings, "no permits", d.rate, unsafe},
		{&ratings, fmt.Sprint(partnerLimit, " permits"), d.rate, d.everywhere},
	} {
		r, err := run.do(ctx, together{title: run.title, guarded: len(*run.results) > 0}, run.through)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", run.title, err)
		}
		*run.results = append(*run.results, r)
	}
	return reports, ratings, nil
}
