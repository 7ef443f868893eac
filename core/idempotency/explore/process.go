package explore

import (
	"context"
	"fmt"
	"net/http"
	"runtime"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/memstore"
)

// Store is the view that one process has of the store of a run. It is a store of locks and of records.
type Store struct {
	*memstore.Process
}

// Transactional reports that effects can be committed together with a record: by [Process.Tx].
func (*Store) Transactional() bool { return true }

// Process is one process of the service. It is an [http.RoundTripper] to the services outside, so that it can be the
// Transport of an [http.Client], and the Base of an httplock.Transport. Its methods are safe for concurrent use.
type Process struct {
	// Store is the process's store of locks and records.
	Store *Store

	world    *World
	name     string
	ctx      context.Context //nolint:containedctx // of the process, which has no caller
	handler  http.Handler
	consumer func(context.Context, Message) error
	died     chan struct{}

	// Of the mutex of the world:
	dead    bool
	resumed chan struct{} // not nil: it stands still
	seen    map[string]int
	last    map[string]int // the calls after the end
}

// Name returns the name of the process: A, B and so on, and A-2 for the process that follows A when A has died.
func (p *Process) Name() string { return p.name }

// Context returns a context that belongs to the process and ends with it. It is for work that has no request.
func (p *Process) Context() context.Context { return p.ctx }

// Engine makes an engine on the store of the process, and closes it at the end of the run. Without
// idempotency.Scope it has idempotency.Global. It panics on a bad option.
func (p *Process) Engine(opts ...idempotency.Option) *idempotency.Engine {
	engine, err := idempotency.New(p.Store, append([]idempotency.Option{idempotency.Global()}, opts...)...)
	if err != nil {
		panic(err)
	}
	p.Cleanup(func() { closing(engine.Close) })
	return engine
}

// Locker makes a locker on the store of the process, and closes it at the end of the run. It panics on a bad option.
func (p *Process) Locker(opts ...core.LockerOption) *core.Locker {
	locker, err := core.New(p.Store, opts...)
	if err != nil {
		panic(err)
	}
	p.Cleanup(func() { closing(locker.Close) })
	return locker
}

func closing(f func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_ = f(ctx) // the process is dead
}

// Cleanup has f called at the end of the run, when everything has been judged. The last function is called first.
// f must end all goroutines of the process, or testing/synctest reports a deadlock.
func (p *Process) Cleanup(f func()) {
	p.world.mu.Lock()
	defer p.world.mu.Unlock()
	p.world.cleanups = append(p.world.cleanups, f)
}

// attempt is the origin of a call: the process, and the request or message that it serves.
type attempt struct {
	process *Process
	cause   string
}

type attemptKey struct{}

func attemptOf(ctx context.Context) *attempt {
	a, _ := ctx.Value(attemptKey{}).(*attempt)
	return a
}

func causeOf(ctx context.Context) string {
	if a := attemptOf(ctx); a != nil {
		return a.cause
	}
	return ""
}

// serving returns the context of a request or message that a process serves.
func (p *Process) serving(cause string) context.Context {
	return context.WithValue(p.ctx, attemptKey{}, &attempt{p, cause})
}

// Point is a step of a handler or a consumer that gets a name: the process can die or stand still here. It does nothing
// under a context that belongs to no run, so that a program may have it.
func Point(ctx context.Context, name string) {
	if a := attemptOf(ctx); a != nil {
		if err := a.process.visit(a.cause, name, point).enter(); err != nil {
			runtime.Goexit() // the run has ended
		}
	}
}

// Around calls f, and returns its error. The process can die or stand still before and after f. The call can also
// get lost before f, and the answer of f afterwards: then Around returns an error that matches [ErrLost]. It is for the calls of a
// client that does not use HTTP, as a transaction of a database:
//
//	err := explore.Around(ctx, "COMMIT", tx.Commit)
//
// Under a context that belongs to no run it only calls f.
func Around(ctx context.Context, name string, f func() error) error {
	a := attemptOf(ctx)
	if a == nil {
		return f()
	}
	return a.process.call(a.cause, name, f)
}

// Effect carries out an effect outside that is called name: it is [Around] with a function that counts. A key that is not empty
// is compared: of several effects with one name and key only the first is carried out, as by a bank that
// deduplicates. It returns nil, or an error that matches [ErrLost]. It is for the fakes of tests: it fails under a context that
// belongs to no run.
func Effect(ctx context.Context, name, key string) error {
	a := attemptOf(ctx)
	if a == nil {
		return fmt.Errorf("explore: the effect %q under a context that belongs to no run", name)
	}
	w := a.process.world
	return a.process.call(a.cause, name, func() error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if _, again := w.replies[name+" "+key]; again && key != "" {
			w.noteLocked(a.process.name, a.cause, name, "known by its key, and not carried out again")
			return nil
		}
		w.replies[name+" "+key] = reply{}
		w.effects = append(w.effects, effect{a.cause, name})
		return nil
	})
}

// call is a call to the outside.
func (p *Process) call(cause, label string, f func() error) error {
	v := p.visit(cause, label, call)
	if err := v.enter(); err != nil {
		return err
	}
	err := f()
	if lost := v.leave(); lost != nil {
		return lost
	}
	return err
}

// gone ends a goroutine of a dead process after the end of the run. The first calls get an error, since a goroutine
// may wait for this one; a loop that goes on trying must end.
func (p *Process) gone(label string) error {
	p.world.mu.Lock()
	if p.last == nil {
		p.last = map[string]int{}
	}
	p.last[label]++
	n := p.last[label]
	p.world.mu.Unlock()
	if n > 20 {
		runtime.Goexit()
	}
	return errDead
}
