package explore

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/interlock-go/interlock/core/memstore"
)

// horizon bounds the time for which clients and the broker try again. With fake time it takes no time.
const horizon = 10 * time.Minute

// pause is a short time for which a process stands still: less than a lease, and enough for others.
const pause = 10 * time.Second

// World is one run of a [Service]: its processes, its clients, and all that they share. Its methods are safe for
// concurrent use.
type World struct {
	service *Service
	setting setting
	plan    map[string]bool  // the faults to inject, by their texts
	draw    func(n int) bool // of a random run: whether the n-th place has a fault
	choose  func(n int) int  // of a random run: which of n faults
	outside map[string]http.Handler
	// compareRows says that it is known which rows depend on the order of the requests.
	compareRows bool
	store       *memstore.Store
	over        chan struct{} // closed at the end, when everything has been judged
	kick        chan struct{} // wakes the scheduler
	steps       atomic.Int64  // of all goroutines

	mu        sync.Mutex
	ended     bool
	busy      int // the goroutines of clients and of the broker, and the processes that stand still
	queue     []*arrival
	processes []*Process // that take requests; a successor takes the place of a dead process
	all       []*Process // also the dead
	cleanups  []func()
	names     map[string]int // of the records, in the order of their claims
	messages  int
	places    []place // in the order of their visits
	injected  []fault
	trace     []event
	effects   []effect
	replies   map[string]reply // of the outside, by host and key
	answers   []*exchange
	delivered []*delivery
	rows      map[string]string
	fences    map[string]int64
}

// setting says which requests are carried out at the same time.
type setting string

const (
	alone    setting = "alone"    // one request after the other
	together setting = "together" // all at the same time, each from two clients
	// backward is alone, from the last request to the first: a row that gets another value then depends on the order.
	backward setting = "backward"
)

// arrival is a goroutine that waits for its turn.
type arrival struct {
	process *Process
	label   string
	granted chan struct{}
}

// event is a line of the trace.
type event struct {
	at      time.Duration
	process string
	cause   string
	label   string
	note    string
}

// schedule lets one goroutine after the other go on, each when all others of the bubble wait. So two runs with the
// same faults visit the same places in the same order.
func (w *World) schedule() {
	for range w.kick {
		for {
			time.Sleep(time.Nanosecond) // until every other goroutine waits
			w.mu.Lock()
			if len(w.queue) == 0 {
				w.mu.Unlock()
				break
			}
			first := 0
			for i, a := range w.queue {
				if strings.Compare(a.name(), w.queue[first].name()) < 0 {
					first = i
				}
			}
			next := w.queue[first]
			w.queue = slices.Delete(w.queue, first, first+1)
			w.mu.Unlock()
			w.steps.Add(1)
			close(next.granted)
		}
	}
}

func (a *arrival) name() string { return a.process.name + " " + a.label }

// turn waits until the goroutine may go on in its process. It returns false if the world has ended; until then a
// goroutine of a dead process stays here.
func (w *World) turn(p *Process, label string) bool {
	for {
		w.mu.Lock()
		switch {
		case w.ended || p.dead:
			w.mu.Unlock()
			<-w.over
			return false
		case p.resumed != nil:
			resumed := p.resumed
			w.mu.Unlock()
			<-resumed
			continue
		}
		a := &arrival{p, label, make(chan struct{})}
		w.queue = append(w.queue, a)
		w.mu.Unlock()
		select {
		case w.kick <- struct{}{}:
		default:
		}
		<-a.granted
		w.mu.Lock()
		goes := !w.ended && !p.dead && p.resumed == nil
		w.mu.Unlock()
		if goes {
			return true
		}
	}
}

// stands keeps a goroutine of a process that is dead or stands still. It returns false when the world has ended.
func (w *World) stands(p *Process, label string) bool {
	w.mu.Lock()
	goes := !w.ended && !p.dead && p.resumed == nil
	w.mu.Unlock()
	return goes || w.turn(p, label)
}

// note adds a line to the trace.
func (w *World) note(process, cause, label, note string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.noteLocked(process, cause, label, note)
}

func (w *World) noteLocked(process, cause, label, note string) {
	if !w.ended {
		w.trace = append(w.trace, event{time.Since(begin), process, cause, label, note})
	}
}

// begin is the first instant of each bubble of testing/synctest.
var begin = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// run runs the service to its end, in a bubble.
func (w *World) run() (broken string) {
	w.over, w.kick = make(chan struct{}), make(chan struct{}, 1)
	w.store, w.names, w.replies, w.rows = memstore.New(), map[string]int{}, map[string]reply{}, map[string]string{}
	w.fences = map[string]int64{}
	w.outside = map[string]http.Handler{}
	for host, handler := range w.service.Outside {
		w.outside[host] = handler()
	}
	if w.service.Start != nil {
		w.service.Start(w)
	}
	go w.schedule()
	for i := range w.service.Processes {
		w.launch(i, string(rune('A'+i)))
	}
	w.clients()
	w.publish()
	for w.working() {
		w.steps.Add(1)
		time.Sleep(time.Second)
	}
	time.Sleep(w.service.Still + time.Minute) // the work in the background is done
	broken = w.judge()
	w.end()
	return broken
}

// end lets all goroutines run out, without effects.
func (w *World) end() {
	w.mu.Lock()
	w.ended = true
	cleanups := w.cleanups
	all := w.all
	w.mu.Unlock()
	close(w.over)
	for _, p := range all {
		p.Store.End()
	}
	for _, cleanup := range slices.Backward(cleanups) {
		cleanup()
	}
	close(w.kick)
}

// spawn starts a goroutine that the end of the run waits for.
func (w *World) spawn(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.spawnLocked(f)
}

func (w *World) spawnLocked(f func()) {
	w.busy++
	go func() {
		f()
		w.mu.Lock()
		defer w.mu.Unlock()
		w.busy--
	}()
}

func (w *World) working() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.busy > 0
}

// launch starts a process in place i.
func (w *World) launch(i int, name string) {
	p := &Process{world: w, name: name, died: make(chan struct{}), seen: map[string]int{}}
	p.Store = &Store{w.store.Process()}
	p.Store.Intercept(p.intercept)
	var stop context.CancelFunc
	p.ctx, stop = context.WithCancel(context.WithValue(context.Background(), attemptKey{}, &attempt{process: p}))
	p.Cleanup(stop)
	if w.service.Handler != nil {
		p.handler = w.service.Handler(p)
	}
	if w.service.Consumer != nil {
		p.consumer = w.service.Consumer(p)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = append(w.all, p)
	if i == len(w.processes) {
		w.processes = append(w.processes, p)
	} else {
		w.processes[i] = p
	}
}

// pick returns the process for a try: the n-th that takes requests.
func (w *World) pick(n int) *Process {
	for {
		w.mu.Lock()
		for i := range w.processes {
			if p := w.processes[(n+i)%len(w.processes)]; !p.dead && p.resumed == nil {
				w.mu.Unlock()
				return p
			}
		}
		w.mu.Unlock()
		time.Sleep(time.Second)
	}
}

// die ends a process, and starts its successor a second later. The caller holds w.mu.
func (w *World) die(p *Process) {
	p.dead = true
	p.Store.Kill()
	close(p.died)
	i := slices.Index(w.processes, p)
	w.spawnLocked(func() {
		time.Sleep(time.Second)
		name, n := p.name, 1
		if base, number, ok := strings.Cut(p.name, "-"); ok {
			name = base
			_, _ = fmt.Sscan(number, &n)
		}
		w.launch(i, fmt.Sprintf("%s-%d", name, n+1))
	})
}

// still has a process stand still for a while. The caller holds w.mu.
func (w *World) still(p *Process, d time.Duration) {
	p.resumed = make(chan struct{})
	p.Store.Stop()
	w.spawnLocked(func() {
		time.Sleep(d)
		w.mu.Lock()
		resumed := p.resumed
		p.resumed = nil
		dead := p.dead
		w.mu.Unlock()
		if !dead {
			w.note(p.name, "", "", "goes on")
			p.Store.Continue()
		}
		close(resumed)
	})
}

// cut cuts a process off from the store for a while.
func (w *World) cut(p *Process) {
	p.Store.CutOff()
	w.spawn(func() {
		time.Sleep(w.service.Still)
		p.Store.Continue()
	})
}

var errDead = errors.New("explore: the process is dead, and the run has ended")
