package idempotency_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/core/reason"
	"github.com/interlock-go/interlock/internal/testkit"
)

// A store that hangs answers nothing before clients give up. An outage counted as clients that leave, or whose
// deadline was too short. An endpoint that fails open does not run the handler for a client that has gone.
func TestAClientThatGivesUpOnASilentStoreReportsTheStore(t *testing.T) {
	for _, c := range []struct {
		hangs    bool
		after    time.Duration // the client gives up
		deadline bool          // by a deadline
		want     reason.Reason
	}{
		{true, time.Second, false, reason.NoRecord},
		{true, 300 * time.Millisecond, true, reason.NoRecord},
		{true, 10 * time.Millisecond, false, reason.Canceled}, // too soon to say
		{true, 10 * time.Millisecond, true, reason.Deadline},
		{false, time.Second, false, reason.Canceled}, // another request is carried out
	} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			inBubble(t, func(w *world) {
				n := 0
				e := w.engine(idempotency.FailOpen(), idempotency.WaitReplay(30*time.Second))
				if c.hangs {
					w.store.Intercept(func(memstore.Request) memstore.Fault { return memstore.Fault{Before: 10 * time.Second} })
				} else {
					go serve(w.Context(), e, post("k"), func(context.Context, endpoint.Attempt) (endpoint.Response, bool) {
						time.Sleep(30 * time.Second)
						return endpoint.Response{Status: 200}, true
					})
					synctest.Wait()
				}
				ctx, cancel := testkit.GivesUp(w.Context(), c.after, c.deadline)
				defer cancel()
				w.want(serve(ctx, e, post("k"), answers(200, &n)), string(c.want))
				if n != 0 {
					w.Errorf("the handler ran %d times; want 0, since the client has gone", n)
				}
				time.Sleep(time.Minute) // until the request is answered
			})
		})
	}
}
