package idempotency_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/admin"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/internal/ident"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/core/observe"
	"github.com/interlock-go/interlock/internal/logtest"
)

// fails makes requests of one kind fail.
func (w *world) fails(op memstore.Op, err error) {
	w.store.Intercept(func(r memstore.Request) memstore.Fault {
		if r.Op == op {
			return memstore.Fault{Err: err}
		}
		return memstore.Fault{}
	})
}

// lockerOn is what a process has on another store.
func (w *world) lockerOn(locks *memstore.Store) *core.Locker {
	w.Helper()
	l, err := core.New(locks)
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { _ = l.Close(context.Background()) })
	return l
}

var errDenied = fmt.Errorf("%w: %w", driver.ErrUnavailable, errors.New("permission denied for table interlock_record"))

// A client gets no details of a fault in the server, so the log is all that the operator has.
// Each case is served five times: three times at once, and twice a minute later.
func TestEachErrorOfTheServerIsLoggedAtOnceAndThenOnceAMinute(t *testing.T) {
	fails := func(context.Context, endpoint.Attempt) (endpoint.Response, bool) { return endpoint.Response{}, false }
	for name, c := range map[string]struct {
		opts   func(w *world) []idempotency.Option
		before func(w *world, e *idempotency.Engine)
		run    func(w *world) handler // nil: it must not run
		want   string                 // the client's answer
		level  string
		text   string // the beginning of the line
		cause  string
	}{
		"the store refuses all requests": {
			before: func(w *world, _ *idempotency.Engine) { w.fails(memstore.Claim, errDenied) },
			want:   "idempotency-unavailable",
			text:   "the store of idempotency records fails and the endpoint refuses requests",
			cause:  "permission denied for table interlock_record",
		},
		"the store cannot do what the endpoint asks for": {
			before: func(w *world, _ *idempotency.Engine) {
				w.fails(memstore.Claim, fmt.Errorf("%w: no transactions", core.ErrConfig))
			},
			want: "misconfigured", level: "ERROR",
			text:  "an idempotent endpoint refuses requests, since the server is not set up for them",
			cause: "no transactions",
		},
		"the record is damaged": {
			before: func(w *world, e *idempotency.Engine) {
				var n int
				w.want(serve(w.Context(), e, post("k"), answers(200, &n)), "200 run 1")
				w.store.DamageRecords()
			},
			want: "idempotency-unavailable", level: "ERROR",
			text:  "a stored response cannot be read, and requests with its key are refused",
			cause: "damaged",
		},
		"the response cannot be opened": {
			opts: func(*world) []idempotency.Option {
				return []idempotency.Option{idempotency.Seal(
					func(b []byte) ([]byte, error) { return b, nil }, func([]byte) ([]byte, error) { panic("no such key") },
				)}
			},
			before: func(w *world, e *idempotency.Engine) {
				var n int
				w.want(serve(w.Context(), e, post("k"), answers(200, &n)), "200 run 1")
			},
			want: "idempotency-unavailable", level: "ERROR",
			text:  "a stored response cannot be read, and requests with its key are refused",
			cause: "no such key",
		},
		"the engine is closed": {
			before: func(w *world, e *idempotency.Engine) { _ = e.Close(w.Context()) },
			want:   "closing",
			text:   "the engine is closed and the endpoint refuses requests",
			cause:  "closed",
		},
		"the claim is lost": {
			run: func(w *world) handler {
				return func(ctx context.Context, a endpoint.Attempt) (endpoint.Response, bool) {
					w.store.TakeClaims(time.Millisecond)
					<-ctx.Done()
					return fails(ctx, a)
				}
			},
			want:  "ran, then lost",
			text:  "an idempotent request lost its claim or its lock before it was answered",
			cause: "another attempt has taken over",
		},
		"the handler reaches its limit": {
			opts: func(*world) []idempotency.Option { return []idempotency.Option{idempotency.MaxHold(time.Second)} },
			run: func(*world) handler {
				return func(ctx context.Context, a endpoint.Attempt) (endpoint.Response, bool) {
					<-ctx.Done()
					return fails(ctx, a)
				}
			},
			want:  "ran, then max-hold",
			text:  "an idempotent request lost its claim or its lock before it was answered",
			cause: "maximum hold reached",
		},
		"the lock is lost": {
			opts: func(w *world) []idempotency.Option {
				return []idempotency.Option{idempotency.Under(core.Serialize(w.lockerOn(memstore.New()), "jobs", core.MaxHold(time.Second)))}
			},
			run: func(*world) handler {
				return func(ctx context.Context, a endpoint.Attempt) (endpoint.Response, bool) {
					<-ctx.Done()
					return fails(ctx, a)
				}
			},
			want:  "ran, then max-hold",
			text:  "an idempotent request lost its claim or its lock before it was answered",
			cause: "maximum hold reached",
		},
		"the transaction is rolled back": {
			run: func(w *world) handler {
				l := &ledger{store: w.store, commit: fmt.Errorf("%w: %w", idempotency.ErrRolledBack, errors.New("could not serialize access"))}
				return l.pays(w, func(context.Context, endpoint.Attempt) (endpoint.Response, bool) {
					return endpoint.Response{Status: 200}, true
				})
			},
			want:  "idempotency-rolled-back",
			text:  "the transaction of an idempotent request was not committed",
			cause: "could not serialize access",
		},
		"the response is too long": {
			opts: func(*world) []idempotency.Option { return []idempotency.Option{idempotency.MaxResponse(1)} },
			run: func(w *world) handler {
				return (&ledger{store: w.store}).pays(w, func(context.Context, endpoint.Attempt) (endpoint.Response, bool) {
					return endpoint.Response{Status: 200, Body: []byte("long")}, true
				})
			},
			want: "idempotency-response-too-large", level: "ERROR",
			text:  "the response of an idempotent request is too long",
			cause: "longer than MaxResponse",
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				opts := []idempotency.Option{idempotency.Name("pay")}
				if c.opts != nil {
					opts = append(opts, c.opts(w)...)
				}
				e := w.engine(opts...)
				if c.before != nil {
					c.before(w, e)
				}
				logged := logtest.Default(w.T)
				h := func(context.Context, endpoint.Attempt) (endpoint.Response, bool) {
					w.Error("the handler ran")
					return endpoint.Response{Status: 200}, true
				}
				if c.run != nil {
					h = c.run(w)
				}
				for i := range 5 {
					q := post("k")
					if c.run != nil {
						q = post(fmt.Sprint(i)) // or it would find what became of the first
					}
					if i == 3 {
						time.Sleep(time.Minute)
					}
					w.want(serve(w.Context(), e, q, h), c.want)
				}
				w.wantLines(logged, cmp.Or(c.level, "WARN"), c.text, c.cause)
			})
		})
	}
}

// wantLines wants two lines with a text: one for the first request, and one for the
// next two and the first after a minute.
func (w *world) wantLines(logged *logtest.Log, level, text, cause string) {
	w.Helper()
	var lines []string
	for line := range strings.Lines(logged.String()) {
		if strings.Contains(line, text) {
			lines = append(lines, line)
		}
		if strings.Contains(line, "error=\"\"") {
			w.Errorf("no cause: %s", line)
		}
	}
	if len(lines) != 2 || !strings.Contains(lines[0], "requests=1 ") || !strings.Contains(lines[1], "requests=3 ") {
		w.Fatalf("%q is to be logged twice, for 1 and for 3 requests:\n%s", text, logged)
	}
	for _, line := range lines {
		for _, want := range []string{"level=" + level, "rule=pay", cause} {
			if !strings.Contains(line, want) {
				w.Errorf("%q is not in %s", want, line)
			}
		}
	}
}

// A rule that refuses has logged that, with its own name.
func TestARefusalOfTheLockOfAnEndpointIsLoggedOnce(t *testing.T) {
	inBubble(t, func(w *world) {
		locks := memstore.New()
		locker := w.lockerOn(locks)
		locks.Intercept(func(memstore.Request) memstore.Fault { return memstore.Fault{Err: errDenied} })
		logged, n := logtest.Default(w.T), 0
		e := w.engine(idempotency.Name("pay"), idempotency.Under(core.Serialize(locker, "jobs", core.Wait(0))))
		w.want(serve(w.Context(), e, post("k"), answers(200, &n)), "unavailable")
		if got := logged.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "rule=jobs") || !strings.Contains(got, "permission denied") {
			w.Errorf("want one line of the rule:\n%s", got)
		}
	})
}

// The client has its answer, so that nothing else says that the store fails.
func TestAResponseThatCannotBeStoredIsLogged(t *testing.T) {
	inBubble(t, func(w *world) {
		logged, n := logtest.Default(w.T), 0
		e := w.engine(idempotency.Name("pay"))
		w.fails(memstore.Commit, errDenied)
		w.want(serve(w.Context(), e, post("k"), answers(200, &n)), "200 run 1")
		time.Sleep(time.Second)
		got := logged.String()
		for _, text := range []string{
			"the store has not confirmed the response to an idempotent request",
			"responses are not stored yet, or keys not freed",
		} {
			if strings.Count(got, text) != 1 {
				w.Errorf("%q is not there once:\n%s", text, got)
			}
		}
		if strings.Count(got, "rule=pay") != 2 || strings.Count(got, "permission denied") != 2 {
			w.Errorf("not with the endpoint and the cause:\n%s", got)
		}
		w.store.Intercept(nil)
	})
}

func TestARequestWhoseClaimCannotBeGivenUpIsLogged(t *testing.T) {
	inBubble(t, func(w *world) {
		logged, n := logtest.Default(w.T), 0
		e := w.engine(idempotency.Name("pay"))
		w.fails(memstore.Abandon, errDenied)
		w.want(serve(w.Context(), e, post("k"), answers(500, &n)), "500 run 1")
		time.Sleep(time.Second)
		if got := logged.String(); strings.Count(got, "keys not freed") != 1 || !strings.Contains(got, "permission denied") {
			w.Errorf("not logged once, with the cause:\n%s", got)
		}
		w.store.Intercept(nil)
	})
}

// The alert about an unknown outcome fires in the process that finds it, which is not the process
// that died. Its log has to name the record, or nobody finds the payment.
func TestAnUnknownOutcomeIsLoggedOnceWithItsRecord(t *testing.T) {
	inBubble(t, func(w *world) {
		crashed(w.store, "k")
		logged, n, records := logtest.Default(w.T), 0, recorder{}
		e := w.engine(idempotency.Name("pay"), idempotency.WithObserver(records))
		for range 3 {
			w.want(serve(w.Context(), e, post("k"), answers(200, &n)), "idempotency-outcome-unknown")
		}
		id := ident.Record("alice", "k")
		for _, want := range []string{"rule=pay", "record=" + id, "downstream_key="} {
			if strings.Count(logged.String(), want) != 1 {
				w.Errorf("want %q once in the log:\n%s", want, logged)
			}
		}
		if records[id] != 3 {
			w.Errorf("the observer was told of %v; want the record three times", records)
		}
		if err := e.ResolveRecord(w.Context(), id, admin.NotCarriedOut()); err != nil {
			w.Error(err)
		}
		w.want(serve(w.Context(), e, post("k"), answers(200, &n)), "200 run 1")
	})
}

// recorder counts decisions by record.
type recorder map[string]int

func (r recorder) Start(ctx context.Context, _ observe.Operation) (context.Context, observe.Observation) {
	return ctx, observe.Observation{Decided: func(d observe.Decided) { r[d.Record]++ }}
}

// The process that does not get the answer stored logs each record too: every one is a case for an
// operator.
func TestEachOutcomeThatAHandlerLeavesUnknownIsLogged(t *testing.T) {
	inBubble(t, func(w *world) {
		l := &ledger{store: w.store, commit: fmt.Errorf("%w: %w", idempotency.ErrRolledBack, errors.New("could not serialize access"))}
		h := l.pays(w, func(ctx context.Context, _ endpoint.Attempt) (endpoint.Response, bool) {
			if err := idempotency.MarkEffect(ctx); err != nil {
				w.Error(err)
			}
			return endpoint.Response{Status: 200}, true
		})
		logged, e := logtest.Default(w.T), w.engine(idempotency.Name("pay"))
		for _, key := range []string{"a", "b"} {
			w.want(serve(w.Context(), e, post(key), h), "ran, then idempotency-outcome-unknown")
			if line := "record=" + ident.Record("alice", key); strings.Count(logged.String(), line) != 1 {
				w.Errorf("want %q once in the log:\n%s", line, logged)
			}
		}
		if !strings.Contains(logged.String(), "could not serialize access") {
			w.Errorf("want the cause in the log:\n%s", logged)
		}
	})
}

// clogged is the handler of a log that leads into a pipe that no process reads.
type clogged struct {
	slog.Handler
	read chan struct{} // closed: the pipe is read again
}

func (c clogged) Enabled(context.Context, slog.Level) bool { <-c.read; return true }

// A request that left no answer waited for ever for the log, and kept the lock around it.
func TestALogThatBlocksKeepsNoRequestAndNoRecord(t *testing.T) {
	inBubble(t, func(w *world) {
		pipe := clogged{slog.DiscardHandler, make(chan struct{})}
		logtest.SetDefault(w.T, pipe)
		hung := time.AfterFunc(time.Hour, func() {
			w.Error("a request waits for the log")
			close(pipe.read)
		})
		crashed(w.store, "unknown")
		e, n := w.engine(idempotency.Name("pay")), 0
		begin := time.Now()
		w.want(serve(w.Context(), e, post("unknown"), answers(200, &n)), "idempotency-outcome-unknown")
		w.fails(memstore.Commit, errDenied)
		w.want(serve(w.Context(), e, post("k"), answers(200, &n)), "200 run 1")
		if took := time.Since(begin); took > time.Second {
			w.Errorf("two requests took %v; want a short time, while the log blocks", took)
		}
		time.Sleep(time.Second) // the first tries in the background fail
		w.store.Intercept(nil)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		w.want(serve(w.Context(), e, post("k"), answers(200, &n)), "replay 200 run 1")
		if hung.Stop() {
			close(pipe.read)
		}
	})
}
