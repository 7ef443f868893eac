package idempotency_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/admin"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/memstore"
)

func TestPendingClaimsListsWhatIsNotSettledYet(t *testing.T) {
	inBubble(t, func(w *world) {
		e := w.engine(idempotency.Name("payment"))
		begin := time.Now()
		n := 0
		var inside []admin.Claim
		w.want(serve(w.Context(), e, post("k"), func(ctx context.Context, a endpoint.Attempt) (endpoint.Response, bool) {
			<-time.After(25 * time.Second) // two renewals
			inside = e.With(idempotency.Name("other")).PendingClaims()
			w.down(memstore.Commit)
			return answers(201, &n)(ctx, a)
		}), "201 run 1")
		if len(inside) != 1 {
			t.Fatalf("inside: %+v", inside)
		}
		want := admin.Claim{
			Rule: "payment", Record: inside[0].Record, State: admin.Running, Generation: 1, Since: begin, Deadline: inside[0].Deadline,
		}
		if inside[0] != want || len(want.Record) != 43 {
			t.Errorf("inside: %+v, want %+v", inside[0], want)
		}
		if left := inside[0].Deadline.Sub(begin); left < 40*time.Second || left > 55*time.Second {
			t.Errorf("renewed until %v after the beginning", left)
		}
		want.State = admin.Storing
		want.Deadline = e.PendingClaims()[0].Deadline
		if got := e.PendingClaims(); len(got) != 1 || got[0] != want {
			t.Errorf("afterwards: %+v, want %+v", got, want)
		}
		w.store.Intercept(nil)
		<-time.After(3 * time.Second)
		if got := e.PendingClaims(); len(got) != 0 {
			t.Errorf("at the end: %+v", got)
		}
	})
}

func TestPendingClaimsListsWhatIsGivenUp(t *testing.T) {
	inBubble(t, func(w *world) {
		e := w.engine()
		w.down(memstore.Abandon)
		w.store.Intercept(func(r memstore.Request) memstore.Fault {
			if r.Op == memstore.Claim {
				return memstore.LostReply // granted, and not known
			}
			return memstore.Unreachable
		})
		n := 0
		w.want(serve(w.Context(), e, post("k"), answers(201, &n)), "idempotency-unavailable")
		states := func() (all []admin.State) {
			for _, c := range e.PendingClaims() {
				all = append(all, c.State)
			}
			return all
		}
		if got := states(); !slices.Equal(got, []admin.State{admin.Releasing}) {
			t.Errorf("states %v", got)
		}
		w.store.Intercept(nil)
		w.store.Intercept(func(memstore.Request) memstore.Fault { return memstore.Fault{} })
		<-time.After(time.Minute)
		if got := states(); len(got) != 0 {
			t.Errorf("at the end: %v", got)
		}
	})
}
