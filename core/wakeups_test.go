package core_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/memstore"
)

// If a lock is free and a live process waits for it, a process that waits is called, or asks by
// itself, within its patience and a round trip. In half of the worlds requests and messages only
// overtake each other, and callers leave while others come. In the other half messages
// are lost or come twice, dead processes are listed, and processes die or stand still, or the store's
// clock is set back.
func TestNoCallerSleepsWhileALockIsFree(t *testing.T) {
	steps := 0
	for seed := uint64(0); steps < wakeupSteps && !t.Failed(); seed++ {
		synctest.Test(t, func(t *testing.T) {
			w := &wakeups{
				T: t, seed: seed, lots: rand.New(rand.NewPCG(seed, 3)), store: memstore.New(),
				processes: map[string]*member{}, waiting: map[*member]int{},
			}
			w.run()
			w.mu.Lock() // the last step may have been a timer's
			steps += w.steps
			w.mu.Unlock()
			if t.Failed() {
				t.Logf("seed %d, %d steps of all seeds", seed, steps)
			}
		})
	}
}

const (
	wakeupLease = 20 * time.Second
	wakeupLasts = 30 * time.Second // of a quiet world
	slowTrip    = 150 * time.Millisecond
	slowMessage = 200 * time.Millisecond // the delay of a message that is held up, at most
	reconnects  = 500 * time.Millisecond // until a process knows that a message was lost
	mostStands  = 500 * time.Millisecond // the patience of a process at the greatest distance

	// freeMost is how long a lock may be free in a world without harm. A few processes have their
	// turns, and a request to leave the list is on its way.
	freeMost = time.Second
	// freeHarmed is the same in a world with harm: the store offers the lock to the first process, and
	// keeps it for three others, all of them dead. A live process may ask a second later, in doubt,
	// and some messages are held up or lost.
	freeHarmed = driver.OfferLasts + (driver.KeptFor-1)*mostStands + time.Second + reconnects + 4*slowMessage
)

// wakeups is a world of processes and one lock.
type wakeups struct {
	*testing.T
	seed  uint64
	store *memstore.Store
	begun time.Time
	ends  time.Time
	all   sync.WaitGroup
	harm  bool
	quiet bool // callers pause, so that the lock is not always taken by a caller that has just come
	kinds [][]core.Option

	mu        sync.Mutex
	lots      *rand.Rand
	steps     int // requests and messages
	processes map[string]*member
	waiting   map[*member]int // callers
	since     time.Time       // from when on the lock was free while a live process waited; zero: it was not
	trace     []string
	line      newestCalls
}

// member is a process, and the store as the process sees it.
type member struct {
	*memstore.Store
	w      *wakeups
	id     string
	locker *core.Locker
	trip   time.Duration
	ctx    context.Context //nolint:containedctx // the life of the process
	die    context.CancelFunc
	until  time.Time // it stands still
}

func (w *wakeups) n(n int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lots.IntN(n)
}

func (w *wakeups) upTo(d time.Duration) time.Duration { return time.Duration(w.n(int(d))) }

// note counts a step, and keeps it for the report.
func (w *wakeups) note(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.steps++
	w.trace = append(w.trace, fmt.Sprintf("%12v ", time.Since(w.begun))+fmt.Sprintf(format, args...))
}

func (w *wakeups) run() {
	w.harm, w.quiet = w.seed%2 == 1, w.n(3) > 0
	lasts := wakeupLasts
	if !w.quiet {
		lasts /= 4 // so much more happens
	}
	w.begun, w.ends = time.Now(), time.Now().Add(lasts)
	w.kinds = [][][]core.Option{
		{nil},
		{{core.OneWaiter()}},
		{newest, newest, nil},
		{{core.Shared()}, {core.Permits(2)}, nil},
		{newest},
		{nil, nil, newest, {core.WholeLease()}, {core.TTL(time.Minute)}},
		{nil, nil, newest, {core.WholeLease()}, {core.Shared()}},
	}[w.n(7)]
	w.store.Intercept(w.meets)
	w.begins()
	time.Sleep(w.upTo(time.Second))
	for w.begins(); !w.quiet && len(w.processes) < 4; {
		w.begins()
	}
	w.all.Go(w.judges)
	for time.Now().Before(w.ends) {
		if time.Sleep(w.upTo(6 * time.Second)); w.seed%4 == 3 {
			w.harms()
		}
	}
	w.all.Wait()
	for _, p := range w.processes {
		p.die()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		_ = p.locker.Close(ctx)
		cancel()
	}
	time.Sleep(time.Hour) // late messages come
}

// begins begins a process with callers.
func (w *wakeups) begins() {
	p := &member{Store: w.store, w: w, trip: []time.Duration{0, 2 * time.Millisecond, 20 * time.Millisecond, slowTrip}[w.n(4)]}
	if only := len(w.kinds) == 1 && len(w.kinds[0]) > 0 && &w.kinds[0][0] == &newest[0]; !w.harm && !only {
		p.trip /= 10 // newest callers come while the replies to others are on their way
	}
	p.ctx, p.die = context.WithCancel(context.Background())
	var err error
	if p.locker, err = core.New(p, core.Watchdog(wakeupLease)); err != nil {
		w.Fatal(err)
	}
	core.Invalid(p.locker, func(err error) { w.Errorf("seed %d: %v", w.seed, err) })
	p.id = core.ID(p.locker)
	slow := w.quiet && len(w.processes) == 0
	w.mu.Lock()
	w.processes[p.id] = p
	w.mu.Unlock()
	callers := 1
	if !w.quiet {
		callers += w.n(4)
	}
	for range callers {
		w.all.Go(func() {
			for time.Now().Before(w.ends) && p.ctx.Err() == nil {
				p.use(slow)
			}
		})
	}
}

// use takes the lock once. A hasty caller leaves soon, and another comes at once. A slow caller
// holds the lock for long, and then pauses.
func (p *member) use(slow bool) {
	w := p.w
	ctx, leave := context.WithDeadline(p.ctx, w.ends)
	defer leave()
	hasty := !slow && w.n(2) == 0
	if hasty {
		ctx, leave = context.WithTimeout(ctx, time.Millisecond+w.upTo(100*time.Millisecond))
		defer leave()
	}
	kind := w.kinds[w.n(len(w.kinds))]
	ended := w.comes(p, kind)
	p.waits(1)
	lease, err := p.locker.Lock(ctx, "k", kind...)
	p.waits(-1)
	ended(lease, err)
	if err == nil {
		if slow || w.n(8) == 0 {
			if w.harm {
				w.listsDead()
			}
			time.Sleep(w.upTo(2 * time.Second))
		}
		time.Sleep(w.upTo(3 * time.Millisecond))
		if p.ctx.Err() == nil {
			_ = lease.Release(context.Background())
		}
		if slow && w.seed%4 == 1 {
			time.AfterFunc(w.upTo(time.Second), w.stepsClock) // while the store keeps the lock
		}
	}
	switch {
	case err != nil && hasty && ctx.Err() != nil:
	case slow:
		time.Sleep(w.upTo(16 * time.Second))
	case w.quiet:
		time.Sleep(w.upTo(2 * time.Second))
	default:
		time.Sleep(time.Millisecond + w.upTo(50*time.Millisecond))
	}
}

// waits notes that so many callers more wait.
func (p *member) waits(n int) {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	if p.w.waiting[p] += n; p.w.waiting[p] == 0 {
		delete(p.w.waiting, p)
	}
}

// judges watches for how long the lock is free while a live process waits. A hold that is too
// short to be seen ends with a request, which meets notes.
func (w *wakeups) judges() {
	most := freeMost
	if w.harm {
		most = freeHarmed
	}
	for ; time.Now().Before(w.ends) && !w.Failed(); time.Sleep(20 * time.Millisecond) {
		_, _, held := w.store.Holder("k")
		w.mu.Lock()
		now, lives := time.Now(), false
		for p := range w.waiting {
			lives = lives || p.ctx.Err() == nil && !now.Before(p.until)
		}
		switch {
		case held || !lives:
			w.since = time.Time{}
		case w.since.IsZero():
			w.since = now
		case now.Sub(w.since) > most:
			w.Errorf("seed %d: the lock is free for %v while a process waits, after %d steps; want %v at most. The last were\n%s",
				w.seed, now.Sub(w.since), w.steps, most, w.last())
		}
		w.mu.Unlock()
	}
}

// last returns the last steps. The caller holds w.mu.
func (w *wakeups) last() string { return strings.Join(w.trace[max(0, len(w.trace)-40):], "\n") }

// harms has a process that waits stand still or die.
func (w *wakeups) harms() {
	var p *member
	w.mu.Lock()
	for p = range w.waiting { // any
		break
	}
	w.mu.Unlock()
	switch what := w.n(3); {
	case what == 0 && p != nil:
		d := w.upTo(2 * time.Second)
		w.mu.Lock()
		p.until = time.Now().Add(d)
		w.mu.Unlock()
		w.note("%s stands still for %v", p.id, d)
	case what == 1 && p != nil:
		w.note("%s dies", p.id)
		p.die()
		w.begins()
	}
}

// stepsClock sets the store's clock back.
func (w *wakeups) stepsClock() {
	d := w.upTo(wakeupLasts)
	w.store.StepClock(-d)
	w.note("the clock is set back by %v", d)
	w.frees() // the store keeps the lock anew
}

// listsDead enters processes that are dead into the list, while the lock is held.
func (w *wakeups) listsDead() {
	for range 20 + w.n(20) {
		name := fmt.Sprint("dead", w.n(1<<30))
		_, _ = w.store.Acquire(context.Background(), driver.AcquireRequest{
			Key: "k", Owner: name + ":1", TTL: wakeupLease, Waiter: driver.NewWaiter(name, driver.Exclusive, mostStands-w.upTo(mostStands/4)),
		})
	}
}

// frees notes that the time for which the lock may be free begins.
func (w *wakeups) frees() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.since = time.Time{}
}

// meets is what happens to a request on its way.
func (w *wakeups) meets(r memstore.Request) memstore.Fault {
	id, _, _ := strings.Cut(r.Owner, ":")
	w.mu.Lock()
	p := w.processes[id]
	w.mu.Unlock()
	switch {
	case r.Op == memstore.Stand: // it names no owner
		return memstore.Fault{Before: w.upTo(slowMessage / 10), After: w.upTo(slowMessage / 10)}
	case p == nil:
		return memstore.Fault{}
	case p.ctx.Err() != nil:
		return memstore.Fault{Err: driver.ErrUnavailable} // it arrives nowhere
	case r.Op == memstore.Release:
		w.frees()
	}
	f := memstore.Fault{Before: p.way() + p.stands(), After: p.way()}
	if r.Op == memstore.Decline && w.n(2) == 0 {
		f.Before += w.upTo(slowMessage) // no caller waits for it, and later requests take another connection
	}
	switch n := w.n(40); {
	case n == 0 && w.harm:
		f.Err, f.Executed = driver.ErrUnavailable, true
	case n == 1 && w.harm:
		f.Err, f.Ambiguous = driver.ErrUnavailable, true
	case n <= 3 && r.Op == memstore.Acquire:
		f.Err = driver.ErrNotReady
	}
	w.note("%s %s: %+v", r.Op, r.Owner, f)
	return f
}
