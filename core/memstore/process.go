package memstore

import (
	"fmt"
	"sync"

	"github.com/interlock-go/interlock/core/driver"
)

// Process is a store as one process of several reaches it ([Store.Process]): a process that can die, stand
// still, and lose its connection. It has all methods of [Store], and the locks and records of the Store that made
// it. Intercept and Requests are for the requests of this process alone; all other methods act for all processes.
//
// A process is alive and connected at first. Its methods are safe for concurrent use, and Kill is final.
type Process struct {
	*Store
}

// Process returns a view of the store for one more process. Give it to the locker and the engine of this process:
//
//	a, b := store.Process(), store.Process()
//	engineA, err := idempotency.New(a, idempotency.Global())
//	engineB, err := idempotency.New(b, idempotency.Global())
//	...
//	a.Kill() // b gets the record when the lease of a's claim has ended
//	...
//	a.End()
//	err = engineA.Close(ctx)
//
// Go cannot end the goroutines of others. So a goroutine of a dead process runs on until its next request to the
// store, and waits there until [Process.End]. Inside a bubble of testing/synctest it waits durably: fake time goes
// on, unless another goroutine waits for a [sync.Mutex] of this one.
func (s *Store) Process() *Process {
	return &Process{&Store{state: s.state, own: &process{requests: map[Op]int{}, gone: make(chan struct{})}}}
}

// Kill ends the process, as a crash or SIGKILL does: no request of it reaches the store from now on, and no
// notification reaches the process. Its requests, also the requests under way, get no answer before [Process.End].
// Its locks and claims end with their leases.
func (p *Process) Kill() { p.own.become(dead) }

// Stop has the process stand still, like SIGSTOP, a long pause of its garbage collector, or a laptop that sleeps:
// its requests, the answers to them and its notifications wait until [Process.Continue]. Its clock goes on, and so
// do its goroutines that make no request.
func (p *Process) Stop() { p.own.become(stopped) }

// Continue ends Stop and CutOff.
func (p *Process) Continue() { p.own.become(running) }

// CutOff ends the connection of the process to the store until [Process.Continue]: each request fails with an error
// that matches core.ErrUnavailable, and notifications are lost. A single answer that gets lost is [LostReply], by
// Intercept.
func (p *Process) CutOff() { p.own.become(cutOff) }

// End is for the end of a test: it kills the process, and all its requests fail at once, also requests that wait. Then
// the locker and the engine of the process can be closed.
func (p *Process) End() {
	p.own.become(dead)
	p.own.end.Do(func() { close(p.own.gone) })
}

// Intercept is [Store.Intercept] for the requests of this process. A request that it lets through meets
// the function of the Store, if there is one. The function may wait: the request then waits.
func (p *Process) Intercept(f func(Request) Fault) {
	p.own.mu.Lock()
	defer p.own.mu.Unlock()
	p.own.intercept = f
}

// Requests returns the number of requests of a kind that have arrived from this process.
func (p *Process) Requests(op Op) int {
	p.own.mu.Lock()
	defer p.own.mu.Unlock()
	return p.own.requests[op]
}

type processState int

const (
	running processState = iota
	stopped
	cutOff
	dead
)

// process is the state of a [Process]. A nil process runs always.
type process struct {
	mu        sync.Mutex
	state     processState
	resumed   chan struct{} // closed when the process is no longer stopped
	gone      chan struct{} // closed at the end of the test
	end       sync.Once
	intercept func(Request) Fault
	requests  map[Op]int
	subs      []*subscription
	delayed   []func() // the notifications of a stopped process
}

// subscription is a registration for notifications. begin makes it; reached is false while the process is cut off.
type subscription struct {
	begin func(reached bool) (end func())
	end   func()
}

var errEnded = fmt.Errorf("%w: the process is dead", driver.ErrUnavailable)

// pass waits while the process is stopped, and at a dead process until the end of the test. The error says
// that the process does not reach the store.
func (p *process) pass() error {
	if p == nil {
		return nil
	}
	for {
		p.mu.Lock()
		state, resumed := p.state, p.resumed
		p.mu.Unlock()
		switch state {
		case running:
			return nil
		case cutOff:
			return fmt.Errorf("%w: the process is cut off", driver.ErrUnavailable)
		case stopped:
			<-resumed
		case dead:
			<-p.gone
			return errEnded
		}
	}
}

// intercepted counts a request of the process and returns its fault.
func (p *process) intercepted(r Request) Fault {
	if p == nil {
		return Fault{}
	}
	p.mu.Lock()
	p.requests[r.Op]++
	intercept := p.intercept
	p.mu.Unlock()
	if intercept == nil {
		return Fault{}
	}
	return intercept(r)
}

// subscribe begins a subscription. It ends with stop, or with the process.
func (p *process) subscribe(begin func(reached bool) (end func())) (stop func()) {
	if p == nil {
		return begin(true)
	}
	sub := &subscription{begin: begin, end: func() {}}
	p.mu.Lock()
	state := p.state
	p.subs = append(p.subs, sub)
	p.mu.Unlock()
	if state != dead {
		p.renew(sub, state != cutOff)
	}
	return func() {
		p.mu.Lock()
		for i := range p.subs {
			if p.subs[i] == sub {
				p.subs = append(p.subs[:i:i], p.subs[i+1:]...)
				break
			}
		}
		end := sub.end
		p.mu.Unlock()
		end()
	}
}

// renew begins a subscription again, after its earlier registration has ended.
func (p *process) renew(sub *subscription, reached bool) {
	p.mu.Lock()
	end := sub.end
	p.mu.Unlock()
	end()
	end = sub.begin(reached)
	p.mu.Lock()
	defer p.mu.Unlock()
	sub.end = end
}

// notify delivers a notification as far as it reaches the process.
func (p *process) notify(deliver func()) {
	if p != nil {
		p.mu.Lock()
		state := p.state
		if state == stopped {
			p.delayed = append(p.delayed, deliver)
		}
		p.mu.Unlock()
		if state != running {
			return
		}
	}
	deliver()
}

// become changes the state of the process, unless it is dead.
func (p *process) become(next processState) {
	p.mu.Lock()
	was := p.state
	if was == dead || was == next {
		p.mu.Unlock()
		return
	}
	p.state = next
	if was == stopped {
		close(p.resumed)
	}
	if next == stopped {
		p.resumed = make(chan struct{})
	}
	delayed := p.delayed
	p.delayed = nil
	subs := append([]*subscription(nil), p.subs...)
	p.mu.Unlock()
	for _, sub := range subs {
		switch {
		case next == dead:
			p.mu.Lock()
			end := sub.end
			p.mu.Unlock()
			end()
		case (next == cutOff) != (was == cutOff):
			p.renew(sub, next != cutOff)
		}
	}
	if next == running {
		for _, deliver := range delayed {
			deliver()
		}
	}
}
