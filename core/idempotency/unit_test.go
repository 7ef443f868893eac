package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/internal/logtest"
)

// ledger has effects of transactions, in the database of the fake store.
type ledger struct {
	store  *memstore.Store
	effect []string
	ended  []string
	// The errors of commits and rollbacks; if rollback has one, the handler has ended the
	// transaction.
	commit, rollback error
}

// unit is a transaction of a ledger.
type unit struct {
	*ledger
	pending []string
}

func (u *unit) Commit(ctx context.Context, req record.CommitRequest) (record.CommitReply, error) {
	if req.Release != nil {
		return record.CommitReply{}, errors.New("the lock is released with the commit")
	}
	if u.commit != nil {
		u.ended = append(u.ended, "failed")
		return record.CommitReply{}, u.commit
	}
	rep, err := u.store.Commit(ctx, req)
	if err != nil || rep.State != record.StateGranted {
		u.ended = append(u.ended, "rolled back")
		return rep, err
	}
	u.ended = append(u.ended, "committed")
	u.effect = append(u.effect, u.pending...)
	return rep, nil
}

func (u *unit) Rollback(context.Context) error {
	if u.rollback != nil {
		u.ended = append(u.ended, "failed")
		return u.rollback
	}
	u.ended = append(u.ended, "rolled back")
	return nil
}

// begin is what a package of a database gives its handlers.
func (l *ledger) begin(ctx context.Context) (*unit, error) {
	u, err := record.Enlist(ctx, func(_ context.Context, c record.Claim) (record.Unit, error) {
		if c.Store != l.store || c.ID == "" || c.Token == "" || c.Lease != 30*time.Second {
			return nil, fmt.Errorf("not the claim of the attempt: %+v", c)
		}
		return &unit{ledger: l}, nil
	})
	if err != nil {
		return nil, err
	}
	return u.(*unit), nil
}

// pays makes a handler that has an effect in the transaction, and goes on as h.
func (l *ledger) pays(tb testing.TB, h handler) handler {
	return func(ctx context.Context, a endpoint.Attempt) (endpoint.Response, bool) {
		u, err := l.begin(ctx)
		if err != nil {
			tb.Error(err)
			return endpoint.Response{Status: 500}, true
		}
		u.pending = append(u.pending, "paid")
		if again, err := l.begin(ctx); again != u || err != nil {
			tb.Errorf("the second call returns another transaction, or %v", err)
		}
		return h(ctx, a)
	}
}

// TestHowATransactionEnds has each end of a handler that has one.
func TestHowATransactionEnds(t *testing.T) {
	marks := func(h handler) handler {
		return func(ctx context.Context, a endpoint.Attempt) (endpoint.Response, bool) {
			if err := idempotency.MarkEffect(ctx); err != nil {
				t.Error(err)
			}
			return h(ctx, a)
		}
	}
	does := func(f func(endpoint.Attempt), status int) handler {
		return func(_ context.Context, a endpoint.Attempt) (endpoint.Response, bool) {
			f(a)
			return endpoint.Response{Status: status, Body: []byte("done")}, true
		}
	}
	nothing := func(endpoint.Attempt) {}
	storeAll := []idempotency.Option{idempotency.StoreAll()}
	rolledBack := fmt.Errorf("%w: by the test", idempotency.ErrRolledBack)
	unknown := errors.New("the connection broke")
	for name, c := range map[string]struct {
		handler handler
		opts    []idempotency.Option
		fails   error  // the error of a commit, and if it is ErrEnded also of a rollback
		first   string // the client's answer
		ended   string // the end of the transaction
		again   string // what its duplicate gets, after a while
		notes   string
	}{
		"success":            {does(nothing, 200), nil, nil, "200 done", "committed", "replay 200 done", "stored 1"},
		"declined":           {does(nothing, 403), nil, nil, "403 done", "committed", "replay 403 done", "stored 1"},
		"not now":            {does(nothing, 429), nil, nil, "429 done", "rolled back", "200 again", "released 1"},
		"failure":            {does(nothing, 500), nil, nil, "500 done", "rolled back", "200 again", "released 1"},
		"failure, store all": {does(nothing, 500), storeAll, nil, "500 done", "rolled back", "replay 500 done", "stored 1"},
		"failure, marked":    {marks(does(nothing, 500)), nil, nil, "500 done", "rolled back", "replay 500 done", "stored 1"},
		"success, marked":    {marks(does(nothing, 200)), nil, nil, "200 done", "committed", "replay 200 done", "stored 1"},
		"not committed":      {does(nothing, 200), nil, rolledBack, "idempotency-rolled-back", "failed", "200 again", "releasedidempotency-rolled-back 1"},
		"not committed, marked": {
			marks(does(nothing, 200)), nil, rolledBack, "ran, then idempotency-outcome-unknown", "failed",
			"idempotency-outcome-unknown", "unknownidempotency-outcome-unknown 1",
		},
		"not known": {does(nothing, 200), nil, unknown, "idempotency-in-flight", "failed", "200 again", "releasedidempotency-in-flight 1"},
		"not known, marked": {
			marks(does(nothing, 200)), nil, unknown, "ran, then idempotency-outcome-unknown", "failed",
			"idempotency-outcome-unknown", "unknownidempotency-outcome-unknown 1",
		},
		"ended by the handler, success": {
			does(nothing, 200), nil, record.ErrEnded, "ran, then idempotency-outcome-unknown", "failed",
			"idempotency-outcome-unknown", "unknownidempotency-outcome-unknown 1",
		},
		"ended by the handler, failure": {
			does(nothing, 500), nil, record.ErrEnded, "ran, then idempotency-outcome-unknown", "failed",
			"idempotency-outcome-unknown", "unknownidempotency-outcome-unknown 1",
		},
		"ended by the handler, failure, store all": {
			does(nothing, 500), storeAll, record.ErrEnded, "ran, then idempotency-outcome-unknown", "failed",
			"idempotency-outcome-unknown", "unknownidempotency-outcome-unknown 1",
		},
		"a statement failed, declined": {does(nothing, 403), nil, record.ErrAborted, "403 done", "failed", "replay 403 done", "stored 1"},
		"a statement failed, success": {
			does(nothing, 200), nil, record.ErrAborted, "idempotency-rolled-back", "failed",
			"200 again", "releasedidempotency-rolled-back 1",
		},
		"too large": {does(func(a endpoint.Attempt) {
			if first, second := a.TooLarge(200), a.TooLarge(200); first || second {
				t.Error("an answer is sent ahead of its transaction")
			}
		}, 200), nil, nil, "idempotency-response-too-large", "rolled back", "200 again", "releasedidempotency-response-too-large 1"},
		"broken off": {
			does(func(a endpoint.Attempt) { a.BrokenOff(errors.New("disk full")) }, 200), nil, nil,
			"idempotency-rolled-back", "rolled back", "200 again", "releasedidempotency-rolled-back 1",
		},
		"broken off, marked": {
			marks(does(func(a endpoint.Attempt) { a.BrokenOff(errors.New("disk full")) }, 200)), nil, nil,
			"ran, then idempotency-outcome-unknown", "rolled back",
			"idempotency-outcome-unknown", "unknownidempotency-outcome-unknown 1",
		},
		"too large, of a protocol whose answers come whole": {
			does(nothing, 200),
			[]idempotency.Option{idempotency.MaxResponse(3)},
			nil,
			"idempotency-response-too-large", "rolled back", "200 again", "releasedidempotency-response-too-large 1",
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				l := &ledger{store: w.store, commit: c.fails}
				if errors.Is(c.fails, record.ErrEnded) {
					l.rollback = c.fails
				}
				e := w.engine(c.opts...)
				w.want(serve(w.Context(), e, post("k"), l.pays(t, c.handler)), c.first)
				w.want(fmt.Sprint(l.ended), fmt.Sprint([]string{c.ended}))
				w.want(fmt.Sprint(w.notes.take()), fmt.Sprint([]string{c.notes}))
				effects := 0
				if c.ended == "committed" {
					effects = 1
				}
				if len(l.effect) != effects {
					w.Errorf("%d effects; want %d", len(l.effect), effects)
				}
				time.Sleep(time.Minute) // longer than a lease
				w.want(serve(w.Context(), e, post("k"), func(context.Context, endpoint.Attempt) (endpoint.Response, bool) {
					return endpoint.Response{Status: 200, Body: []byte("again")}, true
				}), c.again)
			})
		})
	}
}

func TestAPanicRollsBack(t *testing.T) {
	inBubble(t, func(w *world) {
		l, n := &ledger{store: w.store}, 0
		e := w.engine()
		w.panics(e, l)
		w.want(fmt.Sprint(l.ended), "[rolled back]")
		w.want(serve(w.Context(), e, post("k"), answers(200, &n)), "200 run 1")
	})
}

func TestAPanicAfterTheHandlerEndedItsTransactionIsNotCarriedOutAgain(t *testing.T) {
	inBubble(t, func(w *world) {
		l, n := &ledger{store: w.store, rollback: record.ErrEnded}, 0
		e := w.engine()
		w.panics(e, l)
		w.want(serve(w.Context(), e, post("k"), answers(200, &n)), "idempotency-in-flight")
		time.Sleep(time.Minute) // longer than a lease
		w.want(serve(w.Context(), e, post("k"), answers(200, &n)), "idempotency-outcome-unknown")
	})
}

// The record said that the request was carried out and has no answer, and nothing was done.
func TestABrokenOffResponseWhoseTransactionIsRolledBackIsCarriedOutAgainAfterAPanicToo(t *testing.T) {
	inBubble(t, func(w *world) {
		l, n := &ledger{store: w.store}, 0
		e := w.engine(idempotency.StoreAll())
		func() {
			defer func() { _ = recover() }()
			serve(w.Context(), e, post("k"), l.pays(t, func(_ context.Context, a endpoint.Attempt) (endpoint.Response, bool) {
				a.BrokenOff(errors.New("disk full"))
				panic("disk full")
			}))
		}()
		w.want(fmt.Sprint(l.ended), "[rolled back]")
		w.want(serve(w.Context(), e, post("k"), answers(200, &n)), "200 run 1")
	})
}

func TestATransactionThatItsHandlerEndedIsLogged(t *testing.T) {
	unknown := `msg="interlock: the outcome of an idempotent request is not known, and it is not carried out again" rule=pay`
	again := "interlock: an attempt at an idempotent request leaves no answer, and a retry is carried out once its claim has ended"
	unmarked := "interlock: a handler has ended the transaction of its request, and the record could not be marked"
	for name, c := range map[string]struct {
		serve func(w *world, e *idempotency.Engine, l *ledger)
		down  bool // the store, when the record is to be marked
		lines []string
		later string // what a retry gets after the lease
	}{
		"an answer":                   {(*world).answers, false, []string{unknown}, "idempotency-outcome-unknown"},
		"a panic":                     {(*world).panics, false, []string{unknown}, "idempotency-outcome-unknown"},
		"a record that is not marked": {(*world).answers, true, []string{unmarked, again}, "200 run 1"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				logged := logtest.Default(w.T)
				l, n := &ledger{store: w.store, commit: record.ErrEnded, rollback: record.ErrEnded}, 0
				e := w.engine(idempotency.Name("pay"))
				if c.down {
					w.down(memstore.Mark)
				}
				c.serve(w, e, l)
				text := logged.String()
				for _, line := range c.lines {
					if !strings.Contains(text, line) {
						t.Errorf("logged %q; want %q", text, line)
					}
				}
				if strings.Count(text, "level=") != len(c.lines) || !strings.Contains(text, record.ErrEnded.Error()) {
					t.Errorf("logged %q; want %d lines, and the cause", text, len(c.lines))
				}
				time.Sleep(time.Minute) // longer than a lease
				w.want(serve(w.Context(), e, post("k"), answers(200, &n)), c.later)
			})
		})
	}
}

// answers has a handler answer with success in its transaction.
func (w *world) answers(e *idempotency.Engine, l *ledger) {
	w.Helper()
	serve(w.Context(), e, post("k"), l.pays(w.T, answers(200, new(int))))
}

// panics has a handler panic in its transaction.
func (w *world) panics(e *idempotency.Engine, l *ledger) {
	w.Helper()
	defer func() {
		if recover() == nil {
			w.Error("the panic is gone")
		}
	}()
	serve(w.Context(), e, post("k"), l.pays(w.T, func(context.Context, endpoint.Attempt) (endpoint.Response, bool) { panic("no") }))
}

// TestALapsedClaimThatNobodyHasCommits has no renewal arrive, and no other attempt.
func TestALapsedClaimThatNobodyHasCommits(t *testing.T) {
	inBubble(t, func(w *world) {
		l := &ledger{store: w.store}
		w.down(memstore.Extend)
		got := serve(w.Context(), w.engine(), post("k"), l.pays(t, func(ctx context.Context, _ endpoint.Attempt) (endpoint.Response, bool) {
			<-ctx.Done() // the lease has ended
			return endpoint.Response{Status: 200, Body: []byte("late")}, true
		}))
		w.want(got, "200 late")
		w.want(fmt.Sprint(l.ended), "[committed]")
	})
}

// TestATransactionUnderALostLockRollsBack has the lock end before the answer.
func TestATransactionUnderALostLockRollsBack(t *testing.T) {
	inBubble(t, func(w *world) {
		l := &ledger{store: w.store}
		e := w.engine(idempotency.Under(w.losing()))
		got := serve(w.Context(), e, post("k"), l.pays(t, func(ctx context.Context, _ endpoint.Attempt) (endpoint.Response, bool) {
			<-ctx.Done()
			return endpoint.Response{Status: 200, Body: []byte("late")}, true
		}))
		w.want(got, "idempotency-rolled-back")
		w.want(fmt.Sprint(l.ended), "[rolled back]")
		if r := w.record(); r != nil {
			w.Errorf("the claim is left: %+v", r)
		}
	})
}

func TestEnlist(t *testing.T) {
	inBubble(t, func(w *world) {
		l := &ledger{store: w.store}
		begin := func(context.Context, record.Claim) (record.Unit, error) { return &unit{ledger: l}, nil }
		if _, err := record.Enlist(w.Context(), begin); !errors.Is(err, idempotency.ErrNoAttempt) || errors.Is(err, record.ErrNoRecord) {
			w.Errorf("outside of a request: %v", err)
		}
		var kept context.Context
		failed := errors.New("no connection")
		w.want(serve(w.Context(), w.engine(), post("k"), func(ctx context.Context, _ endpoint.Attempt) (endpoint.Response, bool) {
			kept = ctx //nolint:fatcontext // it is looked at after the handler
			_, err := record.Enlist(ctx, func(context.Context, record.Claim) (record.Unit, error) { return nil, failed })
			if !errors.Is(err, failed) {
				w.Errorf("the error of begin is %v", err)
			}
			if _, err := l.begin(ctx); err != nil {
				w.Errorf("after a failure: %v", err)
			}
			return endpoint.Response{Status: 200, Body: []byte("paid")}, true
		}), "200 paid")
		if _, err := record.Enlist(kept, begin); !errors.Is(err, core.ErrLost) {
			w.Errorf("after the handler: %v", err)
		}
		w.want(serve(w.Context(), w.engine(idempotency.Optional()), request{
			protocol: endpoint.HTTP, method: "POST", path: "/payments", scope: "alice",
		}, func(ctx context.Context, _ endpoint.Attempt) (endpoint.Response, bool) {
			if _, err := record.Enlist(ctx, begin); !errors.Is(err, idempotency.ErrNoAttempt) || !errors.Is(err, record.ErrNoRecord) {
				w.Errorf("without a record: %v", err)
			}
			return endpoint.Response{Status: 200}, true
		}), "passed 200 ")
		// An answer that is on its way cannot wait for a commit.
		serve(w.Context(), w.engine(), post("large"), func(ctx context.Context, a endpoint.Attempt) (endpoint.Response, bool) {
			if !a.TooLarge(200) {
				w.Error("an answer without a transaction is not sent")
			}
			if _, err := l.begin(ctx); err == nil {
				w.Error("a transaction begins behind an answer")
			}
			return endpoint.Response{Status: 200}, true
		})
	})
}

// wrapped is a store around another.
type wrapped struct{ idempotency.Store }

func (w wrapped) Unwrap() idempotency.Store { return w.Store }

// withUnits is a store whose records are in a database with transactions.
type withUnits struct{ idempotency.Store }

func (withUnits) Transactional() bool { return true }

// Without the check each request would be carried out with a claim that need not survive a crash.
func TestTransactionalIsRefusedWhereNoTransactionHasTheRecords(t *testing.T) {
	var without idempotency.Store = memstore.New()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}) // sends nothing
	defer func() { _ = rdb.Close() }()
	onRedis, err := redisstore.New(rdb)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = onRedis.Close() }()
	for _, store := range []idempotency.Store{without, wrapped{without}, onRedis} {
		if _, err := idempotency.New(store, idempotency.Global(), idempotency.Transactional()); !errors.Is(err, core.ErrConfig) {
			t.Errorf("New returns %v on a %T; want ErrConfig", err, store)
		}
		engine, err := idempotency.New(store, idempotency.Global())
		if err != nil {
			t.Fatal(err)
		}
		func() {
			defer func() {
				if err, _ := recover().(error); !errors.Is(err, core.ErrConfig) {
					t.Errorf("With panics with %v on a %T; want ErrConfig", err, store)
				}
			}()
			engine.With(idempotency.Transactional())
		}()
	}
	for _, store := range []idempotency.Store{withUnits{without}, wrapped{withUnits{without}}} {
		if _, err := idempotency.New(store, idempotency.Global(), idempotency.Transactional()); err != nil {
			t.Errorf("New returns %v on a %T; want no error", err, store)
		}
	}
}

func TestStrictAndTransactionalExcludeEachOther(t *testing.T) {
	_, err := idempotency.New(memstore.New(), idempotency.Global(), idempotency.Strict(), idempotency.Transactional())
	if !errors.Is(err, core.ErrConfig) {
		t.Errorf("New returns %v", err)
	}
}
