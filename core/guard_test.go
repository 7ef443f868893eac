package core_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/adapter"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/core/observe"
	"github.com/interlock-go/interlock/core/reason"
	"github.com/interlock-go/interlock/internal/logtest"
	"github.com/interlock-go/interlock/internal/testkit/freestore"
)

// request is a core.Request with the parameters and headers of a map, and no
// matched route when it is nil.
type request map[string]string

func (q request) Route() (string, bool)      { return "/accounts/{id}", q != nil }
func (q request) Query(string) []string      { return nil }
func (q request) Body(int64) ([]byte, error) { return nil, nil }
func (q request) Native() any                { return nil }
func (q request) Value(key any) any {
	if v, ok := q[fmt.Sprint(key)]; ok {
		return v
	}
	return nil
}

func (q request) Header(name string) []string {
	if v, ok := q[name]; ok {
		return []string{v}
	}
	return nil
}

func (q request) Param(name string) (string, error) {
	if v, ok := q[name]; ok {
		return v, nil
	}
	return "", adapter.ErrNoParam
}

// ledger records the calls of an Observer.
type ledger struct {
	mu    sync.Mutex
	lines []string
}

func (l *ledger) add(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, fmt.Sprintf(format, args...))
}

func (l *ledger) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.lines, "; ")
}

func (l *ledger) Start(ctx context.Context, op observe.Operation) (context.Context, observe.Observation) {
	return ctx, observe.Observation{
		Acquired: func(a observe.Acquired) { l.add("%s acquired %v", op.Rule, a.Err == nil) },
		Released: func(r observe.Released) { l.add("%s released %v", op.Rule, r.Err == nil) },
		Lost:     func(x core.Loss) { l.add("%s lost %s", op.Rule, x.Reason) },
		Bypassed: func(err error) { l.add("%s bypassed %v", op.Rule, errors.Is(err, core.ErrUnavailable)) },
		Rejected: func(err error) { l.add("%s rejected %v", op.Rule, core.ReasonOf(ctx, err)) },
	}
}

// world is a locker on a store in memory, inside a bubble of synctest: time is free.
type world struct {
	*testing.T
	store  *notedStore
	ledger *ledger
	locker *core.Locker
}

func inWorld(t *testing.T, f func(w *world), opts ...core.LockerOption) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{T: t, store: newStore(), ledger: &ledger{}}
		w.locker = newLocker(t, w.store, append(opts, core.WithObserver(w.ledger))...)
		f(w)
	})
}

// held lists the locks that the store has given out.
func (w *world) held() []string {
	var keys []string
	for _, r := range w.store.seen(memstore.Acquire) {
		if w.store.holder(r.Key) != "" && !slices.Contains(keys, r.Key) {
			keys = append(keys, r.Key)
		}
	}
	slices.Sort(keys)
	return keys
}

// acquires is how often the store was asked for a lock.
func (w *world) acquires() int { return w.store.count(memstore.Acquire) }

// down makes every acquire fail.
func (w *world) down(err error) {
	w.store.Intercept(func(r memstore.Request) memstore.Fault {
		return memstore.Fault{Err: err, Executed: r.Op != memstore.Acquire}
	})
}

// refused runs a request that must not reach its handler.
func (w *world) refused(ctx context.Context, g *core.Guard, req core.Request, want reason.Reason) *core.Refusal {
	w.Helper()
	refusal := g.Do(ctx, req, func(context.Context) bool {
		w.Error("the handler ran")
		return true
	})
	if refusal == nil || refusal.Reason != want || refusal.Ran {
		w.Fatalf("refusal %+v; want %s", refusal, want)
	}
	return refusal
}

// holding runs f while another request holds the rule's lock.
func (w *world) holding(g *core.Guard, req core.Request, f func()) {
	w.Helper()
	if refusal := g.Do(w.Context(), req, func(context.Context) bool { f(); return true }); refusal != nil {
		w.Fatal(refusal.Err)
	}
}

var one = request{"id": "1"}

func TestHandlerRunsUnderTheLeaseAndTheLockGoesAfterIt(t *testing.T) {
	inWorld(t, func(w *world) {
		g := core.Serialize(w.locker, "account/{id}")
		type mark struct{}
		ctx := context.WithValue(w.Context(), mark{}, true)
		refusal := g.Do(ctx, one, func(ctx context.Context) bool {
			lease := core.LeaseFromContext(ctx)
			if lease == nil || lease.Key() != "account/1" || ctx.Value(mark{}) == nil {
				w.Errorf("lease %v in a context with the request's value %v", lease, ctx.Value(mark{}))
			}
			if got := w.held(); !slices.Equal(got, []string{"account/1"}) {
				w.Errorf("held: %v", got)
			}
			return true
		})
		if refusal != nil || len(w.held()) != 0 {
			w.Errorf("refusal %+v, still held: %v", refusal, w.held())
		}
		if got := w.ledger.String(); got != "account/{id} acquired true; account/{id} released true" {
			w.Errorf("observed: %s", got)
		}
	})
}

func TestUnmatchedRoutePassesThroughUnlocked(t *testing.T) {
	inWorld(t, func(w *world) {
		ran := false
		refusal := core.Serialize(w.locker, "account/{id}").Do(w.Context(), request(nil), func(ctx context.Context) bool {
			ran = core.LeaseFromContext(ctx) == nil
			return false
		})
		if !ran || refusal != nil || w.acquires() != 0 {
			w.Errorf("ran %v, refusal %v, %d acquires", ran, refusal, w.acquires())
		}
	})
}

func TestRequestWithoutAKeyIsRejectedBeforeTheStoreIsAsked(t *testing.T) {
	own := errors.New("own")
	keys := func(keys []string, err error) core.GuardOption {
		return core.KeyFunc(func(context.Context, core.Request) ([]string, error) { return keys, err })
	}
	user := func(v string, err error) core.GuardOption {
		return core.ContextFunc("user", func(context.Context, core.Request) (string, error) { return v, err })
	}
	for name, c := range map[string]struct {
		template string
		opts     []core.GuardOption
		want     reason.Reason
		is       error
		logs     string
	}{
		"empty value":                  {template: "account/{empty}", want: reason.BadKey, is: core.ErrKey},
		"missing header":               {template: "t/{header.X-Tenant}", want: reason.BadKey, is: core.ErrKey},
		"no such parameter":            {template: "account/{nope}", want: reason.Misconfigured, is: adapter.ErrNoParam},
		"a source that there is not":   {template: "account/{body.id}", want: reason.Misconfigured, is: adapter.ErrNoParam, logs: "KeyFunc takes a value from the body"},
		"KeyFunc: client's mistake":    {opts: []core.GuardOption{keys(nil, fmt.Errorf("x: %w", core.ErrKey))}, want: reason.BadKey},
		"KeyFunc: body too large":      {opts: []core.GuardOption{keys(nil, adapter.ErrBodyLimit)}, want: reason.BodyTooLarge},
		"KeyFunc: own error":           {opts: []core.GuardOption{keys(nil, own)}, want: reason.Internal, is: own},
		"KeyFunc: its own time limit":  {opts: []core.GuardOption{keys(nil, context.DeadlineExceeded)}, want: reason.Internal},
		"KeyFunc: no keys":             {opts: []core.GuardOption{keys(nil, nil)}, want: reason.BadKey, is: core.ErrKey},
		"KeyFunc: empty key":           {opts: []core.GuardOption{keys([]string{"a", ""}, nil)}, want: reason.BadKey, is: core.ErrKey},
		"KeyFunc: key of 513 bytes":    {opts: []core.GuardOption{keys([]string{strings.Repeat("k", 513)}, nil)}, want: reason.BadKey},
		"ContextFunc: nobody":          {template: "u/{ctx.user}", opts: []core.GuardOption{user("", nil)}, want: reason.BadKey},
		"ContextFunc: client's fault":  {template: "u/{ctx.user}", opts: []core.GuardOption{user("", core.ErrKey)}, want: reason.BadKey},
		"ContextFunc: its own failure": {template: "u/{ctx.user}", opts: []core.GuardOption{user("x", own)}, want: reason.Internal, is: own},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				logged := logtest.Default(w.T)
				g := core.Serialize(w.locker, c.template, append(c.opts, core.Name("rule"))...)
				refusal := w.refused(w.Context(), g, request{"id": "1", "empty": ""}, c.want)
				if c.is != nil && !errors.Is(refusal.Err, c.is) || refusal.Rule != "rule" || refusal.Retryable() {
					w.Errorf("refusal %+v", refusal)
				}
				if got, want := w.ledger.String(), "rule rejected "+string(c.want); got != want || w.acquires() != 0 {
					w.Errorf("observed %q after %d acquires; want %q", got, w.acquires(), want)
				}
				// The client gets no details of the server's mistakes, so the log has them.
				servers := c.want == reason.Misconfigured || c.want == reason.Internal || name == "ContextFunc: nobody"
				if (logged.String() != "") != servers || !strings.Contains(logged.String(), c.logs) {
					w.Errorf("logged %q", logged)
				}
			})
		})
	}
}

func TestLockHeldElsewhereIsRefusedWhenTheWaitIsOver(t *testing.T) {
	for name, c := range map[string]struct {
		opts   []core.GuardOption
		wait   time.Duration
		locker []core.LockerOption
	}{
		"default":           {nil, 5 * time.Second, nil},
		"no wait":           {[]core.GuardOption{core.Wait(0)}, 0, nil},
		"one of the rule":   {[]core.GuardOption{core.Wait(time.Second)}, time.Second, nil},
		"one of the locker": {nil, 3 * time.Second, []core.LockerOption{core.Wait(3 * time.Second)}},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				g := core.Serialize(w.locker, "account/{id}", c.opts...)
				w.holding(g, one, func() {
					begin := time.Now()
					refusal := w.refused(w.Context(), g, one, reason.Held)
					if waited := time.Since(begin); waited != c.wait {
						w.Errorf("refused after %v; want %v", waited, c.wait)
					}
					if !refusal.Retryable() || !errors.Is(refusal.Err, core.ErrHeld) {
						w.Errorf("refusal %+v", refusal)
					}
					// Another resource is free.
					w.holding(g, request{"id": "2"}, func() {})
				})
			}, c.locker...)
		})
	}
}

func TestRequestThatEndsWhileQueuedLeavesTheQueue(t *testing.T) {
	shutdown := errors.New("shutdown")
	for name, c := range map[string]struct {
		with func(context.Context) (context.Context, context.CancelFunc)
		want reason.Reason
	}{
		"client gone": {func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(ctx)
			time.AfterFunc(time.Second, cancel)
			return ctx, cancel
		}, reason.Canceled},
		"canceled with a cause": {func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancelCause(ctx)
			time.AfterFunc(time.Second, func() { cancel(shutdown) })
			return ctx, func() { cancel(nil) }
		}, reason.Canceled},
		"deadline": {func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, time.Second)
		}, reason.Deadline},
		"deadline with a cause": {func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeoutCause(ctx, time.Second, shutdown)
		}, reason.Deadline},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				// Failing open is for a store that is down, not for a request
				// that is over.
				g := core.Serialize(w.locker, "account/{id}", core.FailOpen())
				w.holding(g, one, func() {
					ctx, cancel := c.with(w.Context())
					defer cancel()
					begin := time.Now()
					refusal := w.refused(ctx, g, one, c.want)
					if waited := time.Since(begin); waited != time.Second || refusal.Retryable() {
						w.Errorf("after %v: %+v", waited, refusal)
					}
					if held := w.locker.Held(); len(held) != 1 || held[0].Waiters != 0 {
						w.Errorf("left behind: %+v", held)
					}
				})
			})
		})
	}
}

func TestStoreThatFailsRefusesRatherThanRunsUnlocked(t *testing.T) {
	for want, down := range map[reason.Reason]error{
		reason.Unavailable:   fmt.Errorf("%w: dial: refused", core.ErrUnavailable),
		reason.NotReplicated: core.ErrNotReplicated,
	} {
		t.Run(string(want), func(t *testing.T) {
			inWorld(t, func(w *world) {
				logged := logtest.Default(w.T)
				w.down(down)
				g := core.Serialize(w.locker, "account/{id}", core.Name("debit"))
				for range 3 {
					if refusal := w.refused(w.Context(), g, one, want); !refusal.Retryable() {
						w.Errorf("refusal %+v", refusal)
					}
				}
				// The operator learns it, at most once a minute.
				if got := strings.Count(logged.String(), "rule=debit"); got != 1 || strings.Contains(logged.String(), "account/1") {
					w.Errorf("logged, want one line and no key:\n%s", logged)
				}
				time.Sleep(time.Minute)
				w.refused(w.Context(), g, one, want)
				if !strings.Contains(logged.String(), "requests=3") { // two left out, and this one
					w.Errorf("logged:\n%s", logged)
				}
			})
		})
	}
}

// A client gets no details of a fault in the server, so the log is all that the
// operator has.
func TestEachErrorOfTheServerIsLoggedWithItsCauseAndNoKey(t *testing.T) {
	for name, c := range map[string]struct {
		opts   []core.GuardOption
		before func(w *world)
		run    func(w *world, ctx context.Context) // nil: it must not run
		want   reason.Reason
		line   string
	}{
		"the store cannot do what the rule asks for": {
			before: func(w *world) { w.down(fmt.Errorf("%w: the lease of %q is above MaxTTL", core.ErrConfig, "account/1")) },
			want:   reason.Misconfigured,
			line: `level=ERROR msg="interlock: the rule cannot take its lock and refuses requests" rule=debit requests=1 ` +
				`error="interlock: bad configuration: the lease of ` + core.Hashed("account/1").Hash() + ` is above MaxTTL`,
		},
		"another program has the key": {
			before: func(w *world) { w.down(core.ErrKeyOccupied) },
			want:   reason.KeyOccupied,
			line:   `level=ERROR msg="interlock: the key of a lock has a value that is no lock, and the rule refuses requests" rule=debit requests=1 error=`,
		},
		"the locker is closed": {
			before: func(w *world) {
				if err := w.locker.Close(w.Context()); err != nil {
					w.Error(err)
				}
			},
			want: reason.Closing,
			line: `level=WARN msg="interlock: the locker is closed and the rule refuses requests: shut the server down before Locker.Close" ` +
				`rule=debit requests=1 error="interlock: locker closed"`,
		},
		"the lease is lost": {
			run:  func(w *world, ctx context.Context) { w.store.Take("account/1", time.Minute); <-ctx.Done() },
			want: reason.Lost,
			line: `level=WARN msg="interlock: a lease of the rule was lost before the request was answered, and the client gets an error" ` +
				`rule=debit requests=1 error="interlock: not the owner of the lock"`,
		},
		"the handler reaches its limit": {
			opts: []core.GuardOption{core.MaxHold(time.Second)},
			run:  func(_ *world, ctx context.Context) { <-ctx.Done() },
			want: reason.MaxHold,
			line: `level=WARN msg="interlock: a lease of the rule was lost before the request was answered, and the client gets an error" ` +
				`rule=debit requests=1 error="interlock: maximum hold reached"`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				logged := logtest.Default(w.T)
				g := core.Serialize(w.locker, "account/{id}", append(c.opts, core.Name("debit"))...)
				if c.before != nil {
					c.before(w)
				}
				refusal := g.Do(w.Context(), one, func(ctx context.Context) bool {
					if c.run == nil {
						w.Error("the handler ran")
						return true
					}
					c.run(w, ctx)
					return false
				})
				if refusal == nil || refusal.Reason != c.want {
					w.Fatalf("refusal %+v; want %s", refusal, c.want)
				}
				if got := logged.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, c.line) || strings.Contains(got, "account/1") {
					w.Errorf("want one line without a key, with\n%s\nhave\n%s", c.line, got)
				}
				w.store.Intercept(nil)
			})
		})
	}
}

func TestClosingLockerRefuses(t *testing.T) {
	inWorld(t, func(w *world) {
		g := core.Serialize(w.locker, "account/{id}", core.FailOpen())
		if err := w.locker.Close(w.Context()); err != nil {
			w.Fatal(err)
		}
		if refusal := w.refused(w.Context(), g, one, reason.Closing); !refusal.Retryable() {
			w.Errorf("refusal %+v", refusal)
		}
	})
}

func TestFailOpenRunsWithoutALeaseCountsEachAndLogsOnceAMinute(t *testing.T) {
	inWorld(t, func(w *world) {
		logged := logtest.Default(w.T)
		w.down(fmt.Errorf("%w: %w", core.ErrUnavailable, errors.New("dial 10.0.0.7:6379: refused")))
		g := core.Serialize(w.locker, "account/{id}", core.FailOpen(), core.Name("debit"))
		ran := 0
		for range 3 {
			if refusal := g.Do(w.Context(), one, func(ctx context.Context) bool {
				if core.LeaseFromContext(ctx) == nil {
					ran++
				}
				return true
			}); refusal != nil {
				w.Fatal(refusal.Err)
			}
		}
		if got := strings.Count(w.ledger.String(), "debit bypassed true"); ran != 3 || got != 3 {
			w.Errorf("%d ran without a lease, %d counted; want 3", ran, got)
		}
		if got := strings.Count(logged.String(), "rule=debit"); got != 1 ||
			!strings.Contains(logged.String(), "dial (address): refused") || strings.Contains(logged.String(), "account/1") {
			w.Errorf("logged, want one line, the reason, no key and no address:\n%s", logged)
		}
		time.Sleep(time.Minute)
		g.Do(w.Context(), one, func(context.Context) bool { return true })
		if !strings.Contains(logged.String(), "requests=3") { // two left out, and this one
			w.Errorf("logged:\n%s", logged)
		}
	})
}

func TestFailOpenDoesNotOpenAHeldLock(t *testing.T) {
	inWorld(t, func(w *world) {
		g := core.Serialize(w.locker, "account/{id}", core.FailOpen(), core.Wait(0))
		w.holding(g, one, func() { w.refused(w.Context(), g, one, reason.Held) })
	})
}

func TestPanicPassesThroughUntouchedAfterTheRelease(t *testing.T) {
	inWorld(t, func(w *world) {
		thrown := errors.New("thrown")
		func() {
			defer func() {
				if caught := recover(); caught != any(thrown) {
					w.Errorf("recovered %v; want the handler's own value", caught)
				}
				if held := w.held(); len(held) != 0 {
					w.Errorf("still held when the panic came out: %v", held)
				}
			}()
			core.Serialize(w.locker, "account/{id}").Do(w.Context(), one, func(context.Context) bool { panic(thrown) })
		}()
	})
}

func TestGoexitReleases(t *testing.T) {
	inWorld(t, func(w *world) {
		go core.Serialize(w.locker, "account/{id}").Do(w.Context(), one, func(context.Context) bool {
			runtime.Goexit()
			return true
		})
		synctest.Wait()
		if held := w.held(); len(held) != 0 {
			w.Errorf("still held: %v", held)
		}
	})
}

func TestLossCountsOnlyBeforeTheAnswer(t *testing.T) {
	lose := func(w *world) { w.store.Take("account/1", time.Minute) }
	for name, c := range map[string]struct {
		opts     []core.GuardOption
		run      func(w *world, ctx context.Context)
		answered bool
		want     reason.Reason
		cause    error
	}{
		"lost before": {run: func(w *world, ctx context.Context) { lose(w); <-ctx.Done() }, want: reason.Lost, cause: core.ErrLost},
		"lost after":  {run: func(w *world, ctx context.Context) { lose(w); <-ctx.Done() }, answered: true, cause: core.ErrLost},
		"fixed lease over": {
			opts: []core.GuardOption{core.TTL(time.Second)},
			run:  func(_ *world, ctx context.Context) { <-ctx.Done() },
			want: reason.Lost, cause: core.ErrLost,
		},
		"maximum hold": {
			opts: []core.GuardOption{core.MaxHold(time.Second)},
			run:  func(_ *world, ctx context.Context) { <-ctx.Done() },
			want: reason.MaxHold, cause: core.ErrMaxHold,
		},
		"not lost, no answer": {run: func(*world, context.Context) {}},
		"released by the handler itself": {run: func(w *world, ctx context.Context) {
			if err := core.LeaseFromContext(ctx).Release(ctx); err != nil {
				w.Error(err)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				var cause error
				var told core.Loss
				opts := append(c.opts, core.OnLost(func(l core.Loss) { told = l }))
				g := core.Serialize(w.locker, "account/{id}", opts...)
				refusal := g.Do(w.Context(), one, func(ctx context.Context) bool {
					c.run(w, ctx)
					cause = context.Cause(ctx)
					return c.answered
				})
				synctest.Wait() // for OnLost
				if c.cause != nil && (!errors.Is(cause, c.cause) || told.Key != "account/1") {
					w.Errorf("cause %v, OnLost told %+v; want %v", cause, told, c.cause)
				}
				switch {
				case c.want == "" && refusal != nil:
					w.Errorf("refusal %+v; want none", refusal)
				case c.want == "":
				case refusal == nil || refusal.Reason != c.want || !refusal.Ran || refusal.Retryable():
					w.Errorf("refusal %+v; want %s", refusal, c.want)
				}
			})
		})
	}
}

func TestGuardsThatShareAndGuardsWithPermits(t *testing.T) {
	inWorld(t, func(w *world) {
		logtest.Default(w.T)
		alone, share := core.Serialize(w.locker, "account/{id}", core.Wait(0)), core.Share(w.locker, "account/{id}", core.Wait(0))
		w.holding(share, one, func() {
			w.holding(share, one, func() {})
			w.refused(w.Context(), alone, one, reason.Held)
		})
		w.holding(alone, one, func() { w.refused(w.Context(), share, one, reason.Held) })
		atMost := core.AtMost(w.locker, 2, "account/{id}", core.Wait(0))
		w.holding(atMost, one, func() {
			w.holding(atMost, one, func() { w.refused(w.Context(), atMost, one, reason.Full) })
		})
		w.holding(alone, one, func() { w.refused(w.Context(), atMost, one, reason.Held) })
		share.Do(w.Context(), one, func(ctx context.Context) bool {
			if refusal := share.Do(ctx, one, func(context.Context) bool { return true }); refusal != nil {
				w.Errorf("sharing under the lock that is shared: %+v", refusal)
			}
			w.refused(ctx, alone, one, reason.Misconfigured)
			return true
		})
	})
}

func TestKeysAreThoseOfTheTemplatesAndTheKeyFunc(t *testing.T) {
	inWorld(t, func(w *world) {
		g := core.Serialize(w.locker, "account/{from}", core.And("account/{to}"),
			core.KeyFunc(func(_ context.Context, req core.Request) ([]string, error) {
				id, err := req.Param("from")
				return []string{"audit/" + id}, err
			}))
		keys, err := g.Keys(w.Context(), request{"from": "a/b", "to": "c"})
		if want := []string{"account/a%2Fb", "account/c", "audit/a/b"}; err != nil || !slices.Equal(keys, want) {
			w.Errorf("%q, %v; want %q", keys, err, want)
		}
		want := []adapter.Placeholder{{Source: adapter.SourceParam, Name: "from"}, {Source: adapter.SourceParam, Name: "to"}}
		if got := g.Placeholders(); !slices.Equal(got, want) {
			w.Errorf("placeholders %v", got)
		}
	})
}

func TestContextFuncOfTheRuleReplacesThatOfTheLocker(t *testing.T) {
	user := func(v string) core.RequestOption {
		return core.ContextFunc("user", func(context.Context, core.Request) (string, error) { return v, nil })
	}
	inWorld(t, func(w *world) {
		for want, g := range map[string]*core.Guard{
			"u/locker": core.Serialize(w.locker, "u/{ctx.user}"),
			"u/rule":   core.Serialize(w.locker, "u/{ctx.user}", user("rule")),
			"u/other":  core.Serialize(w.locker, "u/{ctx.user}", user("other")),
		} {
			if keys, err := g.Keys(w.Context(), one); err != nil || keys[0] != want {
				w.Errorf("%v, %v; want %s", keys, err, want)
			}
		}
	}, user("locker"))
}

func TestBadRuleIsRefusedAtRegistration(t *testing.T) {
	inWorld(t, func(w *world) {
		for name, c := range map[string]struct {
			template string
			opts     []core.GuardOption
			want     string
		}{
			"empty template":     {want: "empty template"},
			"unbalanced":         {template: "account/{id", want: "position 9"},
			"second template":    {template: "a", opts: []core.GuardOption{core.And("b}")}, want: `"b}"`},
			"empty second":       {template: "a", opts: []core.GuardOption{core.And("")}, want: "empty template"},
			"nil KeyFunc":        {opts: []core.GuardOption{core.KeyFunc(nil)}, want: "must not be nil"},
			"nil ContextFunc":    {template: "a", opts: []core.GuardOption{core.ContextFunc("u", nil)}, want: "must not be nil"},
			"name of ContextFun": {template: "a", opts: []core.GuardOption{core.ContextFunc("u}", nil)}, want: "letters, digits"},
			"TTL and Watchdog":   {template: "a", opts: []core.GuardOption{core.TTL(time.Second), core.Watchdog(time.Second)}, want: "together"},
		} {
			g, err := core.NewGuard(w.locker, c.template, c.opts...)
			if g != nil || !errors.Is(err, core.ErrConfig) || !strings.Contains(err.Error(), c.want) {
				w.Errorf("%s: %v; want ErrConfig with %q", name, err, c.want)
			}
			func() {
				defer func() {
					if err, _ := recover().(error); !errors.Is(err, core.ErrConfig) {
						w.Errorf("%s: Serialize panicked with %v", name, err)
					}
				}()
				core.Serialize(w.locker, c.template, c.opts...)
			}()
		}
		if _, err := core.NewGuard(nil, "a"); !errors.Is(err, core.ErrConfig) {
			w.Errorf("nil locker: %v", err)
		}
	})
}

func TestEachErrorHasItsReason(t *testing.T) {
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	late, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	for _, c := range []struct {
		ctx  context.Context
		err  error
		want reason.Reason
	}{
		{t.Context(), nil, ""},
		{t.Context(), fmt.Errorf("x: %w", core.ErrQueueFull), reason.QueueFull},
		{t.Context(), fmt.Errorf("%w: %w", core.ErrQueueFull, core.ErrHeld), reason.QueueFull},
		{t.Context(), core.ErrMaxHold, reason.MaxHold},
		{t.Context(), fmt.Errorf("%w: %w", core.ErrLost, driver.ErrNotOwner), reason.Lost},
		{t.Context(), fmt.Errorf("%w: %w", core.ErrUnavailable, driver.ErrNotReady), reason.Unavailable},
		{t.Context(), errors.New("x"), reason.Internal},
		{t.Context(), context.DeadlineExceeded, reason.Internal}, // not this request's
		{late, fmt.Errorf("waiting: %w", context.DeadlineExceeded), reason.Deadline},
		{canceled, fmt.Errorf("waiting: %w", context.Canceled), reason.Canceled},
		// The store failed, which is why nothing came of it, though the request
		// is over by now as well.
		{late, fmt.Errorf("%w: %w", core.ErrUnavailable, context.DeadlineExceeded), reason.Unavailable},
		{canceled, core.ErrHeld, reason.Held},
	} {
		if got := core.ReasonOf(c.ctx, c.err); got != c.want {
			t.Errorf("%v: %q; want %q", c.err, got, c.want)
		}
	}
}

func BenchmarkGuard(b *testing.B) {
	g := core.Serialize(freestore.Locker(b), "account/{id}")
	b.ReportAllocs()
	for b.Loop() {
		if refusal := g.Do(b.Context(), one, func(context.Context) bool { return true }); refusal != nil {
			b.Fatal(refusal.Err)
		}
	}
}

func TestANilOptionHasNoEffect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLocker(t, newStore(), nil, core.Name("l"), nil)
		if g := core.Serialize(l, "k", nil); g.Name() != "l" {
			t.Errorf("the guard has the name %q", g.Name())
		}
		lease, err := l.Lock(t.Context(), "k", nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
