package idempotency_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/memstore"
)

func TestAnAnswerThatCannotBeStoredIsSentAndStoredLater(t *testing.T) {
	inBubble(t, func(w *world) {
		e, other := w.engine(), w.engine()
		w.down(memstore.Commit, memstore.Extend)
		n := 0
		w.want(serve(w.Context(), e, post("k"), answers(201, &n)), "201 run 1")
		if e.Pending() != 1 {
			t.Errorf("%d pending", e.Pending())
		}
		<-time.After(29 * time.Second)
		w.down(memstore.Commit) // renewals go through again: no attempt takes over
		<-time.After(5 * time.Minute)
		w.want(serve(w.Context(), other, post("k"), answers(201, &n)), "idempotency-in-flight")
		w.store.Intercept(nil)
		<-time.After(3 * time.Second)
		w.want(serve(w.Context(), other, post("k"), answers(201, &n)), "replay 201 run 1")
		if e.Pending() != 0 || w.store.Requests(memstore.Abandon) != 0 {
			t.Errorf("%d pending, %d releases", e.Pending(), w.store.Requests(memstore.Abandon))
		}
		k := w.store.Requests(memstore.Extend)
		<-time.After(time.Hour)
		if w.store.Requests(memstore.Extend) != k {
			t.Error("it is renewed still")
		}
		if got := w.notes.take(); !slices.Contains(got, "pending 1") {
			t.Errorf("observed %v", got)
		}
	})
}

func TestAnAnswerIsGivenUpWhenAnotherTookOver(t *testing.T) {
	inBubble(t, func(w *world) {
		e, other := w.engine(), w.engine()
		n := 0
		w.want(serve(w.Context(), e, post("k"), func(ctx context.Context, a endpoint.Attempt) (endpoint.Response, bool) {
			w.down() // cut off for as long as it takes
			return answers(201, &n)(ctx, a)
		}), "201 run 1")
		<-time.After(31 * time.Second)
		var mended atomic.Bool
		w.store.Intercept(func(r memstore.Request) memstore.Fault {
			if !mended.Load() && r.Op != memstore.Claim {
				return memstore.Unreachable
			}
			return memstore.Fault{}
		})
		w.want(serve(w.Context(), other, post("k"), func(ctx context.Context, a endpoint.Attempt) (endpoint.Response, bool) {
			mended.Store(true)
			return answers(200, &n)(ctx, a)
		}), "200 run 2")
		<-time.After(3 * time.Second)
		if e.Pending() != 0 {
			t.Error("it is still tried")
		}
		w.want(serve(w.Context(), e, post("k"), answers(200, &n)), "replay 200 run 2")
	})
}

func TestTheBacklogIsBounded(t *testing.T) {
	inBubble(t, func(w *world) {
		e := w.engine(idempotency.Backlog(10 << 10))
		w.down(memstore.Commit)
		for i := range 20 {
			serve(w.Context(), e, post(fmt.Sprint("k", i)), func(context.Context, endpoint.Attempt) (endpoint.Response, bool) {
				return endpoint.Response{Status: 200, Body: make([]byte, 4<<10)}, true
			})
		}
		w.store.Intercept(nil)
		<-time.After(5 * time.Second)
		n, replayed, unavailable := 0, 0, 0
		for i := range 20 {
			switch got := serve(w.Context(), e, post(fmt.Sprint("k", i)), answers(200, &n)); {
			case strings.HasPrefix(got, "replay 200"):
				replayed++
			case got == "idempotency-response-unavailable":
				unavailable++
			default:
				t.Error(got)
			}
		}
		if replayed != 1 || unavailable != 19 {
			t.Errorf("%d replayed, %d unavailable", replayed, unavailable)
		}
	})
}
