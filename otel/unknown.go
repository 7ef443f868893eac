package otellock

import (
	"context"
	"fmt"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"
)

const (
	// unknownPause is the least pause between two counts of one source.
	unknownPause = time.Minute
	// unknownShare is how many times longer than a count the pause after it is, so that a store of
	// many records is not read all the time.
	unknownShare = 50
)

// unknown is a source of the number of requests with an unknown outcome.
type unknown struct {
	count func(context.Context) (int, error)
	ctx   context.Context // ends with the stop of WatchUnknown

	mu    sync.Mutex
	busy  bool
	next  time.Time // before it no count begins
	n     int
	known bool
}

// WatchUnknown reports how many requests to idempotent endpoints have an unknown outcome
// (interlock.idempotent.unknown), until stop is called. A process that died after its effect had
// begun leaves one. The other metrics see it when its client retries, and many do not. count
// reads the number from the store:
//
//	observer.WatchUnknown(f.Unknown)
//
// f is the [fleet.Fleet] of a store on Redis or PostgreSQL. count goes
// through all records, so let one process of a service watch, and watch a store once: the gauge
// is the sum of what is watched. The collection of metrics starts a count in another goroutine, at
// most once a minute; the pause is at least 50 times as long as the count. The next collection
// reports it. The context of a count lasts a minute, and count must end with it. After an error,
// which goes to [otel.Handle], there is no value until a count succeeds.
//
// stop may be called more than once, and does not wait. WatchUnknown does nothing with a nil count.
// It is safe for concurrent use.
//
// [fleet.Fleet]: https://pkg.go.dev/github.com/interlock-go/interlock/core/fleet#Fleet
func (o *Observer) WatchUnknown(count func(ctx context.Context) (int, error)) (stop func()) {
	if count == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	u, g := &unknown{count: count, ctx: ctx}, o.gauges
	g.mu.Lock()
	defer g.mu.Unlock()
	g.unknowns[u] = struct{}{}
	return func() {
		cancel()
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.unknowns, u)
	}
}

// last returns the last count, if it has succeeded, and begins the next one if it is time.
func (u *unknown) last() (n int, known bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if began := time.Now(); !u.busy && !began.Before(u.next) && u.ctx.Err() == nil {
		u.busy = true
		go u.read(began)
	}
	return u.n, u.known
}

func (u *unknown) read(began time.Time) {
	n, err := u.counted()
	if err != nil && u.ctx.Err() == nil {
		otel.Handle(fmt.Errorf("interlock: otellock: counting the requests with an unknown outcome: %w", err))
	}
	end := time.Now()
	u.mu.Lock()
	defer u.mu.Unlock()
	u.n, u.known, u.busy = n, err == nil, false
	u.next = end.Add(max(unknownPause, unknownShare*end.Sub(began)))
}

// counted calls count. A panic for the sake of a metric must not end the process.
func (u *unknown) counted() (n int, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the function has panicked: %v", p)
		}
	}()
	ctx, cancel := context.WithTimeout(u.ctx, time.Minute)
	defer cancel()
	return u.count(ctx)
}

// reportUnknown reports the sum of what is watched, unless a part of it is not known.
func reportUnknown(to metric.Observer, as metric.Int64Observable, all []*unknown) {
	sum, complete := int64(0), len(all) > 0
	for _, u := range all {
		n, known := u.last()
		sum, complete = sum+int64(n), complete && known
	}
	if complete {
		to.ObserveInt64(as, sum)
	}
}
