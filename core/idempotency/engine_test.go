package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/memstore"
)

func TestBadConfigurationIsRefused(t *testing.T) {
	store := memstore.New()
	for name, opts := range map[string][]idempotency.Option{
		"no scope":        {},
		"nil scope":       {idempotency.Scope(nil)},
		"short lease":     {idempotency.Global(), idempotency.Lease(time.Millisecond)},
		"short retention": {idempotency.Global(), idempotency.Retention(time.Second)},
		"retention":       {idempotency.Global(), idempotency.Retention(0)},
		"max hold":        {idempotency.Global(), idempotency.MaxHold(0)},
		"wait":            {idempotency.Global(), idempotency.WaitReplay(-1)},
		"request":         {idempotency.Global(), idempotency.MaxRequest(-1)},
		"response":        {idempotency.Global(), idempotency.MaxResponse(-1)},
		"backlog":         {idempotency.Global(), idempotency.Backlog(-1)},
		"tombstone":       {idempotency.Global(), idempotency.Tombstone(-1)},
	} {
		if _, err := idempotency.New(store, opts...); !errors.Is(err, core.ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := idempotency.New(nil, idempotency.Global()); !errors.Is(err, core.ErrConfig) {
		t.Errorf("nil store: %v", err)
	}
	e, err := idempotency.New(store, idempotency.Global())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if recover() == nil {
			t.Error("With took a bad option")
		}
	}()
	e.With(idempotency.Lease(0))
}

func TestClosingDoesNotWaitForClaimsThatMayStillCome(t *testing.T) {
	for name, c := range map[string]struct {
		opt   idempotency.Option
		waits time.Duration
	}{"": {nil, 0}, "strict": {idempotency.Strict(), 40 * time.Second}} { // its rounds are a third of the lease
		inBubble(t, func(w *world) {
			e := w.engine(c.opt)
			w.store.Intercept(during(memstore.Claim, memstore.LostReply))
			n := 0
			w.want(serve(w.Context(), e, post("k"), answers(200, &n)), "idempotency-unavailable")
			<-time.After(time.Second)
			before, begin := w.store.Requests(memstore.Abandon), time.Now()
			if err := e.Close(context.Background()); err != nil {
				t.Error(err)
			}
			took := time.Since(begin)
			if took > c.waits || took < c.waits/2 {
				t.Errorf("%s: closing took %v", name, took)
			}
			if w.store.Requests(memstore.Abandon) == before || w.record() != nil {
				t.Errorf("%s: the claim was not given up once more", name)
			}
		})
	}
}

func TestCloseDrains(t *testing.T) {
	inBubble(t, func(w *world) {
		e := w.engine()
		n := 0
		release := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			w.want(serve(w.Context(), e, post("k"), func(ctx context.Context, a endpoint.Attempt) (endpoint.Response, bool) {
				<-release
				return answers(201, &n)(ctx, a)
			}), "201 run 1")
		})
		synctest.Wait()
		closed := make(chan error, 1)
		go func() { closed <- e.Close(context.Background()) }()
		synctest.Wait()
		w.want(serve(w.Context(), e, post("l"), answers(200, &n)), "closing")
		<-time.After(time.Minute) // renewed meanwhile
		w.down(memstore.Commit)
		close(release)
		wg.Wait()
		<-time.After(time.Minute)
		select {
		case err := <-closed:
			t.Fatalf("closed with an answer that is not stored: %v", err)
		default:
		}
		w.store.Intercept(nil)
		if err := <-closed; err != nil {
			t.Error(err)
		}
		w.want(serve(w.Context(), w.engine(), post("k"), answers(200, &n)), "replay 201 run 1")
	})
}

func TestCloseThatIsCutShortEndsTheHandlers(t *testing.T) {
	inBubble(t, func(w *world) {
		e := w.engine()
		var wg sync.WaitGroup
		wg.Go(func() {
			w.want(serve(w.Context(), e, post("k"), func(ctx context.Context, _ endpoint.Attempt) (endpoint.Response, bool) {
				<-ctx.Done()
				if !errors.Is(context.Cause(ctx), core.ErrClosed) {
					t.Error(context.Cause(ctx))
				}
				return endpoint.Response{}, false
			}), "ran, then lost")
		})
		synctest.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := e.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		wg.Wait()
		if r := w.record(); r == nil || r.State != record.StateInFlight {
			t.Errorf("the claim was not left: %+v", r)
		}
	})
}

func TestTheObserverHearsHowEachRequestEnded(t *testing.T) {
	inBubble(t, func(w *world) {
		e := w.engine()
		n := 0
		serve(w.Context(), e, post("k"), answers(200, &n))
		serve(w.Context(), e, post("k"), answers(200, &n))
		serve(w.Context(), e, post("l"), answers(500, &n))
		q := post("k")
		q.body = "other"
		serve(w.Context(), e, q, answers(200, &n))
		serve(w.Context(), e, post(""), answers(200, &n))
		want := []string{
			"stored 1", "replayed 0", "released 1", "refusedidempotency-key-reused 0", "refusedidempotency-key-malformed 0",
		}
		if got := w.notes.take(); !slices.Equal(got, want) {
			t.Errorf("observed %q", got)
		}
	})
}

func TestAnEngineTakesTheObserverOfItsLocker(t *testing.T) {
	inBubble(t, func(w *world) {
		heard := map[string]*notes{"first": {}, "second": {}, "own": {}}
		rule := func(opts ...core.LockerOption) *core.Guard {
			l, err := core.New(w.store, opts...)
			if err != nil {
				w.Fatal(err)
			}
			w.Cleanup(func() { _ = l.Close(context.Background()) })
			return core.Serialize(l, "account")
		}
		first, second := rule(core.WithObserver(heard["first"])), rule(core.WithObserver(heard["second"]))
		own := idempotency.WithObserver(heard["own"])
		type options = []idempotency.Option
		for i, c := range []struct {
			want string // the receivers of reports about a request
			base options
			with options
		}{
			{"", nil, nil},
			{"first", options{idempotency.Under(first)}, nil},
			{"first", nil, options{idempotency.Under(first)}},
			{"second", options{idempotency.Under(first)}, options{idempotency.Under(second)}},
			{"", options{idempotency.Under(first)}, options{idempotency.Under(nil)}},
			{"", options{idempotency.Under(first)}, options{idempotency.Under(rule())}},
			{"own", options{own, idempotency.Under(first)}, nil},
			{"own", options{own}, options{idempotency.Under(first)}},
			{"own", options{idempotency.Under(first)}, options{own}},
			{"", options{idempotency.Under(first)}, options{idempotency.WithObserver(nil)}},
		} {
			e, err := idempotency.New(w.store, append(options{idempotency.Global()}, c.base...)...)
			if err != nil {
				w.Fatal(err)
			}
			n := 0
			w.want(serve(w.Context(), e.With(c.with...), post(fmt.Sprint("k", i)), answers(200, &n)), "200 run 1")
			for name, notes := range heard {
				want := []string(nil)
				if name == c.want {
					want = []string{"stored 1"}
				}
				if got := notes.take(); !slices.Equal(got, want) {
					t.Errorf("%d: %s heard %q; want %q", i, name, got, want)
				}
			}
			if err := e.Close(w.Context()); err != nil {
				t.Error(err)
			}
		}
	})
}
