package host

import (
	"context"
	"sync"
	"time"

	"github.com/interlock-go/interlock/core/internal/logs"
)

// Work is the work of a store in the background, and its end. [Begin] makes it. It is safe for concurrent use.
type Work struct {
	log     *logs.Log
	life    context.Context // until End
	end     context.CancelFunc
	failing sync.Map // what fails -> *logs.Throttle

	mu   sync.Mutex // no work begins after the end
	work sync.WaitGroup
}

// Begin makes [Work] that logs what fails.
func Begin(log *logs.Log) *Work {
	w := &Work{log: log}
	w.life, w.end = context.WithCancel(context.Background())
	return w
}

// Life returns a context that ends with End.
func (w *Work) Life() context.Context { return w.life }

// Closed reports whether End was called.
func (w *Work) Closed() bool { return w.life.Err() != nil }

// Go runs f on a goroutine that Wait waits for. It reports false, and does not run f, after End.
func (w *Work) Go(f func()) bool {
	begun := w.begin()
	if begun {
		go func() {
			defer w.work.Done()
			f()
		}()
	}
	return begun
}

// Do is Go on the goroutine of the caller.
func (w *Work) Do(f func()) bool {
	begun := w.begin()
	if begun {
		defer w.work.Done()
		f()
	}
	return begun
}

// begin notes work that begins, unless the work has ended.
func (w *Work) begin() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.Closed() {
		return false
	}
	w.work.Add(1)
	return true
}

// Sleep waits for d, or until there is something in the channel sooner, which may be nil. It reports false after End.
func (w *Work) Sleep(d time.Duration, sooner <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-w.life.Done():
	case <-timer.C:
	case <-sooner:
	}
	return !w.Closed()
}

// Failed logs that something did not succeed: at once, and then once a minute for each text, until End.
func (w *Work) Failed(what string, err error) {
	if throttle, _ := w.failing.LoadOrStore(what, new(logs.Throttle)); !w.Closed() {
		throttle.(*logs.Throttle).Warn(w.log, "interlock: "+what, err)
	}
}

// End ends the work: what begins later does not.
func (w *Work) End() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.end()
}

// Wait waits for the work after its end.
func (w *Work) Wait() { w.work.Wait() }
