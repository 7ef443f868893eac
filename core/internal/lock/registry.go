package lock

import (
	"context"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

const (
	// announceAfter is how long after its first use a locker announces itself: a
	// process that has ended by then costs nothing.
	announceAfter = time.Second
	// announceEvery is how often it does that again while it is used. Two tries in a
	// row may fail before the entry ends.
	announceEvery = 20 * time.Second
	// announceTTL is how long the entry stays.
	announceTTL = time.Minute
	// announceWithin bounds an announcement, and withdrawWithin the end of the entry,
	// for which Close waits.
	announceWithin = 5 * time.Second
	withdrawWithin = time.Second
)

// registry keeps the entry of a Table in a store that has entries. Its timer runs while
// the table is used and a round longer: no goroutine stays for it, and a table that is
// forgotten without Close is collected.
//
// Lock order: its mutex, then the mutexes of the shards. No request is sent under it.
type registry struct {
	table *Table
	store driver.Registry
	self  driver.Announcement

	running atomic.Bool // the timer is; if there is no entry to keep, it is true for ever

	mu      sync.Mutex
	timer   *time.Timer
	fresh   bool // the timer was started by a use, and has not fired since
	written bool // there may be an entry
	closed  bool
}

// Announce has the Table keep an entry in the store while it is used, if the store has
// such entries. It is called before the first [Table.Acquire].
func (t *Table) Announce(service, version string) {
	store, ok := t.store.Store.(driver.Registry)
	if !ok {
		return
	}
	t.registry.store = store
	t.registry.self = driver.Announcement{
		ID: t.ID, PID: os.Getpid(), Service: service, Version: version,
		Started: time.Now(), Protocol: driver.Protocol, TTL: announceTTL,
	}
	t.registry.running.Store(false)
}

func (r *registry) init(t *Table) {
	r.table = t
	r.running.Store(true)
}

// use starts the timer: a caller is in a queue, or holds a lock. It must be there to be seen
// already: due looks for it after it has stopped the timer.
func (r *registry) use() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || r.running.Swap(true) {
		return
	}
	r.fresh = true
	if r.timer == nil {
		r.timer = time.AfterFunc(announceAfter, r.due)
	} else {
		r.timer.Reset(announceAfter)
	}
}

// due is called by the timer: it announces the table, unless that is no longer used.
func (r *registry) due() {
	if !r.begin() {
		return
	}
	defer r.table.life.work.done()
	ctx, cancel := context.WithTimeout(context.Background(), announceWithin)
	defer cancel()
	if r.self.Host == "" {
		r.self.Host, _ = os.Hostname() // without a name the process number has to do
	}
	if err := r.store.Announce(ctx, r.self); err != nil {
		r.table.Hooks.Log.Debug("interlock: this locker's entry could not be written, so that tools cannot name its process",
			"locker", r.self.ID, "error", err)
	}
}

// begin reports whether to announce the table, and starts the timer for the next time.
func (r *registry) begin() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return false
	}
	// A caller that comes from now on waits for the mutex; a caller that came before is seen.
	if r.running.Store(false); !r.fresh && !r.table.used() {
		return false
	}
	r.running.Store(true)
	r.fresh, r.written = false, true
	r.timer.Reset(announceEvery)
	r.table.life.work.begin() // here, so that Close waits for it
	return true
}

// used reports whether a caller holds a lock or waits for one.
func (t *Table) used() bool {
	for i := range t.keys.shards {
		sh := &t.keys.shards[i]
		sh.mu.Lock()
		n := len(sh.locks)
		sh.mu.Unlock()
		if n > 0 {
			return true
		}
	}
	return false
}

// stop ends the timer.
func (r *registry) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	r.running.Store(true)
	if r.timer != nil {
		r.timer.Stop()
	}
}

// withdraw deletes the entry, after stop and after the end of the request on its way.
// Of several calls the first one does it.
func (r *registry) withdraw(ctx context.Context) {
	r.mu.Lock()
	written := r.written
	r.written = false
	r.mu.Unlock()
	if !written || ctx.Err() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, withdrawWithin)
	defer cancel()
	_ = r.store.Withdraw(ctx, r.self.ID) // else it ends by itself
}
