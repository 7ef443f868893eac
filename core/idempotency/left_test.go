package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/memstore"
)

// A pool without a free connection kept the answer of a handler for five minutes. The test is
// in no bubble: a handler that waits for a mutex would stop the bubble's time.
func TestAnAnswerDoesNotWaitForAGoroutineThatTheHandlerLeft(t *testing.T) {
	type left func(ctx context.Context, store *memstore.Store, l *ledger, wait func()) error
	for name, c := range map[string]left{
		"that begins a transaction": func(ctx context.Context, _ *memstore.Store, l *ledger, wait func()) error {
			_, err := record.Enlist(ctx, func(context.Context, record.Claim) (record.Unit, error) {
				wait() // for a connection
				return &unit{ledger: l}, nil
			})
			return err
		},
		"that marks the effect": func(ctx context.Context, store *memstore.Store, _ *ledger, wait func()) error {
			store.Intercept(func(r memstore.Request) memstore.Fault {
				if r.Op == memstore.Mark {
					wait() // for the store
				}
				return memstore.Fault{}
			})
			return idempotency.MarkEffect(ctx)
		},
	} {
		for status, again := range map[int]string{200: "replay 200 done", 500: "200 run 1"} {
			t.Run(fmt.Sprint("a goroutine ", name, ", and ", status), func(t *testing.T) {
				t.Parallel()
				store := memstore.New()
				e, err := idempotency.New(store, idempotency.Global())
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = e.Close(context.Background()) }()
				l, waits, free, failed := &ledger{store: store}, make(chan struct{}), make(chan struct{}), make(chan error, 1)
				answer := make(chan string, 1)
				go func() {
					answer <- serve(t.Context(), e, post("k"), func(ctx context.Context, _ endpoint.Attempt) (endpoint.Response, bool) {
						go func() {
							failed <- c(context.WithoutCancel(ctx), store, l, func() { close(waits); <-free })
						}()
						<-waits
						return endpoint.Response{Status: status, Body: []byte("done")}, true
					})
				}()
				select {
				case got := <-answer:
					if want := fmt.Sprint(status, " done"); got != want {
						t.Errorf("the answer is %q; want %q", got, want)
					}
				case <-time.After(10 * time.Second):
					t.Error("the answer of a handler that has returned waits for its goroutine")
				}
				close(free)
				if err := <-failed; !errors.Is(err, core.ErrLost) {
					t.Errorf("the goroutine gets %v; want an error that matches ErrLost, since the record is decided", err)
				}
				n := 0
				if got := serve(t.Context(), e, post("k"), answers(200, &n)); got != again {
					t.Errorf("a retry gets %q; want %q", got, again)
				}
				if len(l.ended) > 0 && fmt.Sprint(l.ended) != "[rolled back]" {
					t.Errorf("the transaction of the goroutine ended as %v; want it rolled back", l.ended)
				}
			})
		}
	}
}

// Two goroutines of a handler share its transaction.
func TestOneTransactionBeginsForAllWhoAskAtOnce(t *testing.T) {
	inBubble(t, func(w *world) {
		l, begun := &ledger{store: w.store}, 0
		got := serve(w.Context(), w.engine(), post("k"), func(ctx context.Context, _ endpoint.Attempt) (endpoint.Response, bool) {
			units := make(chan record.Unit, 3)
			for range cap(units) {
				go func() {
					u, err := record.Enlist(ctx, func(context.Context, record.Claim) (record.Unit, error) {
						begun++ // one after the other: the first fails, and the next begins anew
						time.Sleep(time.Second)
						if begun == 1 {
							return nil, errors.New("no connection")
						}
						return &unit{ledger: l}, nil
					})
					if err != nil {
						u = nil
					}
					units <- u
				}()
			}
			none, one, two := <-units, <-units, <-units
			if none != nil || one == nil || one != two || begun != 2 {
				w.Errorf("transactions %v, %v and %v of %d begun; want none for the first caller, and one for the others", none, one, two, begun)
			}
			return endpoint.Response{Status: 200, Body: []byte("paid")}, true
		})
		w.want(got, "200 paid")
		w.want(fmt.Sprint(l.ended), "[committed]")
	})
}
