package timers

import (
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core/internal/clock"
	_ "github.com/interlock-go/interlock/internal/bubble"
)

// in is the instant that comes a while after the clock was made.
func in(d time.Duration) clock.Instant { return clock.Instant(1).Add(d) }

// task is an item that notes when it was served.
type task struct {
	Slot
	at     clock.Instant
	served []clock.Instant
}

// owner has a Scheduler, as a locker has one.
type owner struct {
	Scheduler[*task]
	work    sync.WaitGroup
	started int // goroutines

	mu      sync.Mutex
	batches [][]*task
	on      func(t *task, now clock.Instant)
}

func newOwner(t testing.TB) *owner {
	c := clock.New()
	o := &owner{}
	o.Clock = &c
	o.Go = func(f func()) {
		o.started++
		o.work.Go(f)
	}
	o.Serve = func(batch []*task, now clock.Instant) {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.batches = append(o.batches, slices.Clone(batch))
		for _, t := range batch {
			t.served = append(t.served, now)
			if o.on != nil {
				o.on(t, now)
			}
		}
	}
	t.Cleanup(func() {
		o.Stop()
		o.work.Wait()
	})
	return o
}

// wakes reports whether f wakes the goroutine, which sleeps.
func (o *owner) wakes(f func()) bool {
	synctest.Wait()
	tap := make(chan struct{}, 1)
	poke := o.swapPoke(tap)
	f()
	o.swapPoke(poke)
	if len(tap) == 0 {
		return false
	}
	poke <- struct{}{}
	return true
}

func (o *owner) swapPoke(c chan struct{}) (old chan struct{}) {
	o.Scheduler.mu.Lock()
	defer o.Scheduler.mu.Unlock()
	old, o.poke = o.poke, c
	return old
}

func FuzzHeap(f *testing.F) {
	f.Add([]byte{1, 10, 2, 5, 1, 3, 2, 0, 3, 200, 3, 1})
	f.Add(slices.Repeat([]byte{7, 3, 9, 1, 8, 255, 20, 0}, 20))
	f.Fuzz(func(t *testing.T, steps []byte) {
		var tasks [64]task
		m := model{t: t, at: map[*task]clock.Instant{}}
		for len(steps) >= 2 {
			x := &tasks[steps[0]%64]
			if steps[1] == 0 {
				m.remove(x)
			} else {
				m.put(x, clock.Instant(steps[1]))
			}
			steps = steps[2:]
		}
		m.drain()
	})
}

// model does everything with a heap and with a map, and compares the two.
type model struct {
	t  *testing.T
	h  heap[*task]
	at map[*task]clock.Instant
}

func (m *model) put(x *task, at clock.Instant) {
	m.at[x] = at
	if i := m.h.put(x, at, 0); m.h.items[m.h.events[i].slot] != x {
		m.t.Fatalf("at %d, which put returned, is another item", i)
	}
	m.compare()
}

func (m *model) remove(x *task) {
	delete(m.at, x)
	m.h.remove(x)
	m.compare()
}

func (m *model) compare() {
	m.t.Helper()
	h := &m.h
	if h.len() != len(m.at) {
		m.t.Fatalf("%d events, want %d", h.len(), len(m.at))
	}
	for i, e := range h.events {
		item := h.items[e.slot]
		if item.number != e.slot+1 || int(h.index[e.slot]) != i || e.at != m.at[item] {
			m.t.Fatalf("at %d is an event of %v, of slot %d and an item with slot %d, want %v", i, e.at, e.slot, item.number, m.at[item])
		}
		if parent := (i - 1) / children; i > 0 && h.events[parent].at > e.at {
			m.t.Fatalf("the event at %d is before the one at %d", i, parent)
		}
	}
	free := 0
	for slot := h.free; slot != 0; slot = h.index[slot-1] {
		if h.items[slot-1] != nil {
			m.t.Fatalf("the free slot %d has an item", slot)
		}
		free++
	}
	if free+h.len() != len(h.items) || len(h.index) != len(h.items) {
		m.t.Fatalf("%d slots for %d items, and %d are free", len(h.items), h.len(), free)
	}
}

// drain takes the events out in order, as a sorted list has them.
func (m *model) drain() {
	m.t.Helper()
	want := make([]clock.Instant, 0, len(m.at))
	for _, at := range m.at {
		want = append(want, at)
	}
	slices.Sort(want)
	got := make([]clock.Instant, 0, len(want))
	for m.h.len() > 0 {
		at, _ := m.h.first()
		got = append(got, at)
		m.remove(m.h.next())
	}
	if !slices.Equal(got, want) {
		m.t.Fatalf("events at %v, want %v", got, want)
	}
}

func TestEachEventIsServedAtItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOwner(t)
		var tasks [50]task
		for i := range tasks {
			tasks[i].at = in(time.Duration(1+(i*7)%50) * time.Second)
			o.Schedule(&tasks[i], tasks[i].at, 0)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		for i := range tasks {
			if !slices.Equal(tasks[i].served, []clock.Instant{tasks[i].at}) {
				t.Errorf("an event of %v was served at %v", tasks[i].at, tasks[i].served)
			}
		}
	})
}

func TestWhatIsDueTogetherIsOneBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOwner(t)
		var early, soon, exact, late task
		o.Schedule(&early, in(time.Second), 0)
		o.Schedule(&soon, in(1040*time.Millisecond), 50*time.Millisecond)
		o.Schedule(&exact, in(1050*time.Millisecond), 0)
		o.Schedule(&late, in(1100*time.Millisecond), 50*time.Millisecond)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		o.mu.Lock()
		defer o.mu.Unlock()
		if len(o.batches) != 2 || !slices.Equal(o.batches[0], []*task{&early, &soon}) ||
			!slices.Equal(o.batches[1], []*task{&exact, &late}) {
			t.Errorf("batches %v", o.batches)
		}
		if soon.served[0] != in(time.Second) || exact.served[0] != in(1050*time.Millisecond) {
			t.Errorf("served at %v and %v", soon.served, exact.served)
		}
	})
}

func TestAnEarlierEventWakesTheGoroutineAndALaterOneDoesNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOwner(t)
		var first, later, earlier task
		o.Schedule(&first, in(10*time.Second), 0)
		if o.wakes(func() { o.Schedule(&later, in(20*time.Second), 0) }) {
			t.Error("a later event woke the goroutine")
		}
		if !o.wakes(func() { o.Schedule(&earlier, in(5*time.Second), 0) }) {
			t.Error("an earlier event did not wake the goroutine")
		}
		time.Sleep(time.Minute)
		o.work.Wait()
		for x, want := range map[*task]clock.Instant{&first: in(10 * time.Second), &later: in(20 * time.Second), &earlier: in(5 * time.Second)} {
			if !slices.Equal(x.served, []clock.Instant{want}) {
				t.Errorf("served at %v, want %v", x.served, want)
			}
		}
	})
}

func TestTheGoroutineLingersAndIsThenStartedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOwner(t)
		var x task
		o.Schedule(&x, in(10*time.Second), 0)
		o.Cancel(&x)
		synctest.Wait()
		for range 5 { // one by one, as a caller locks and releases
			o.Schedule(&x, in(10*time.Second), 0)
			o.Cancel(&x)
			time.Sleep(Linger / 10)
		}
		if o.started != 1 {
			t.Errorf("the goroutine was started %d times, want once", o.started)
		}
		time.Sleep(Linger)
		o.work.Wait() // it has ended, after Linger, or after the first event if it saw that
		at := o.Clock.Now().Add(10 * time.Second)
		o.Schedule(&x, at, 0)
		time.Sleep(time.Minute)
		o.work.Wait()
		if o.started != 2 || !slices.Equal(x.served, []clock.Instant{at}) {
			t.Errorf("started %d times, served at %v", o.started, x.served)
		}
	})
}

func TestACancelledEventIsNotServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOwner(t)
		var cancelled, moved, stays task
		o.Schedule(&cancelled, in(time.Second), 0)
		o.Schedule(&moved, in(time.Second), 0)
		o.Schedule(&stays, in(2*time.Second), 0)
		o.Cancel(&cancelled)
		o.Cancel(&cancelled) // again, which does nothing
		o.Schedule(&moved, in(3*time.Second), 0)
		time.Sleep(time.Minute)
		o.work.Wait()
		if len(cancelled.served) != 0 || !slices.Equal(moved.served, []clock.Instant{in(3 * time.Second)}) ||
			!slices.Equal(stays.served, []clock.Instant{in(2 * time.Second)}) {
			t.Errorf("served at %v, %v and %v", cancelled.served, moved.served, stays.served)
		}
	})
}

func TestWhatServeSchedulesIsServedWithoutASleepBetween(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOwner(t)
		var x task
		o.on = func(x *task, now clock.Instant) {
			if len(x.served) < 5 {
				o.Schedule(x, now, 0)
			}
		}
		o.Schedule(&x, in(time.Second), 0)
		time.Sleep(2 * time.Second)
		o.work.Wait()
		if !slices.Equal(x.served, slices.Repeat([]clock.Instant{in(time.Second)}, 5)) {
			t.Errorf("served at %v", x.served)
		}
	})
}

func TestStopEndsTheGoroutineAndAllEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOwner(t)
		var x, y task
		o.Schedule(&x, in(time.Hour), 0)
		synctest.Wait()
		if dropped := o.Stop(); !slices.Equal(dropped, []*task{&x}) {
			t.Errorf("dropped %v", dropped)
		}
		begin := time.Now()
		o.work.Wait()
		o.Schedule(&y, in(time.Second), 0)
		o.Cancel(&x)
		o.Stop()
		o.work.Wait()
		if d := time.Since(begin); d != 0 || o.started != 1 || x.number+y.number != 0 {
			t.Errorf("it took %v to end, %d goroutines, slots %d and %d", d, o.started, x.number, y.number)
		}
	})
}

func TestStopWhileServing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOwner(t)
		var x task
		o.on = func(x *task, now clock.Instant) {
			o.Stop()
			o.Schedule(x, now.Add(time.Second), 0)
		}
		o.Schedule(&x, in(time.Second), 0)
		time.Sleep(time.Minute)
		o.work.Wait()
		if len(x.served) != 1 {
			t.Errorf("served at %v", x.served)
		}
	})
}

// Several goroutines schedule and cancel at random. A scheduled item is served at its
// time, a cancelled one is not.
func TestAnyOrderOfSchedulesAndCancelsIsServedAsTheLastSays(t *testing.T) {
	for seed := range uint64(seeds) {
		synctest.Test(t, func(t *testing.T) {
			o := newOwner(t)
			var all sync.WaitGroup
			var tasks [8][30]task
			for g := range tasks {
				all.Go(func() {
					random := rand.New(rand.NewPCG(seed, uint64(g)))
					for range 300 {
						x := &tasks[g][random.IntN(len(tasks[g]))]
						if random.IntN(4) == 0 {
							x.at = 0
							o.Cancel(x)
						} else {
							x.at = in(time.Minute + time.Duration(random.IntN(1000))*time.Millisecond)
							o.Schedule(x, x.at, 0)
						}
						if random.IntN(10) == 0 {
							time.Sleep(time.Duration(random.IntN(100)) * time.Millisecond)
						}
					}
				})
			}
			all.Wait()
			time.Sleep(2 * time.Minute)
			o.work.Wait()
			for g := range tasks {
				for i := range tasks[g] {
					x := &tasks[g][i]
					if x.at == 0 && len(x.served) != 0 || x.at != 0 && !slices.Equal(x.served, []clock.Instant{x.at}) {
						t.Fatalf("seed %d: an event of %v was served at %v", seed, x.at, x.served)
					}
				}
			}
		})
	}
}

func TestSchedulingAllocatesNothing(t *testing.T) {
	o := newOwner(t)
	var tasks [100]task
	round := func() {
		for i := range tasks {
			o.Schedule(&tasks[i], in(time.Hour+time.Duration(i*37%100)*time.Second), time.Second)
		}
		for i := range tasks {
			o.Cancel(&tasks[i])
		}
	}
	round()
	if n := testing.AllocsPerRun(100, round); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// Without others, and beside 10,000 events.
func BenchmarkScheduleAndCancel(b *testing.B) {
	for name, beside := range map[string]int{"alone": 0, "beside 10000": 10_000} {
		b.Run(name, func(b *testing.B) {
			o := newOwner(b)
			others := make([]task, beside)
			for i := range others {
				o.Schedule(&others[i], in(time.Hour+time.Duration(i*7919%beside)*time.Second), 0)
			}
			var x task
			at := in(time.Hour)
			b.ReportAllocs()
			for b.Loop() {
				at = at.Add(time.Millisecond)
				o.Schedule(&x, at, 0)
				o.Cancel(&x)
			}
		})
	}
}
