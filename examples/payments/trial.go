package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/interlock-go/interlock/core/reason"
)

// trial is a run, and a column of a table.
type trial struct {
	title   string
	guarded bool // the requests were under a lock, had a permit, or a key

	mu      sync.Mutex
	asked   int
	done    int
	by      map[string]int // done, by front end
	refused int            // the lock was busy: not done, and the answer said so
	failed  error          // an answer of another kind

	wrong              int64 // updates lost, sums that were never there, calls above the contract, payments made twice
	balances, expected []int64
	waits              []time.Duration
	commands           float64 // sent to Redis per request

	most, meanwhile                   int // requests at once; transfers meanwhile
	replayed, inFlight, busy, crossed int // of payments; two are of their tries
}

// broken reports whether a promise was not kept.
func (t *trial) broken() bool { return t.guarded && (t.wrong > 0 || t.done == 0) }

// again makes a request, and again if Redis did not answer the bank in time, and so nothing
// was done.
func again(ctx context.Context, request func(ctx context.Context) error) (err error) {
	for tries := range 20 {
		err = request(ctx)
		if !slices.Contains([]string{string(reason.Unavailable), string(reason.NoRecord), "ledger-unavailable"}, reasonOf(err)) {
			break
		}
		time.Sleep(time.Duration(tries) * 10 * time.Millisecond)
	}
	return err
}

// ask makes a request through a client.
func (t *trial) ask(ctx context.Context, c client, request func(ctx context.Context) error) {
	t.note(c, again(ctx, request))
}

// note counts a request that was answered through a client.
func (t *trial) note(c client, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.asked++
	switch reasonOf(err) {
	case "":
		t.done++
		t.by[c.frontend]++
	case string(reason.Held), string(reason.Full):
		t.refused++
	default:
		t.failed = fmt.Errorf("a request was answered by %s: %w", c.frontend, err)
	}
}

// atOnce makes n requests at once, distributed over the clients in pairs, so that both
// directions of the transfers use all front ends.
func (t *trial) atOnce(ctx context.Context, n int, through []client, request func(ctx context.Context, i int, c client) error) {
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			<-start
			c := through[i/2%len(through)]
			t.ask(ctx, c, func(ctx context.Context) error { return request(ctx, i, c) })
		})
	}
	close(start)
	wg.Wait()
}
