package ginlock_test

import (
	"errors"
	"fmt"
	"net/http"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/ginlock"
	"github.com/interlock-go/interlock/internal/testkit"
)

// A handler that passes gin's own context on must neither wait for itself for ever, nor have
// lost its lease and its attempt without a word.
func TestGinsOwnContextIsNotTakenForOneWithoutALock(t *testing.T) {
	for _, fallback := range []bool{false, true} {
		locker := testkit.Locker(t)
		engine := testkit.Engine(t, idempotency.Under(core.Serialize(locker, "account/{id}")))
		r := gin.New()
		r.ContextWithFallback = fallback
		r.POST("/:id", ginlock.Idempotent(engine), func(c *gin.Context) {
			lease, err := locker.Lock(c, "account/42")
			if fallback {
				if err != nil {
					t.Error(err)
				}
				_ = lease.Release(c)
			} else if !errors.Is(err, core.ErrConfig) {
				t.Errorf("Lock: %v", err)
			}
			ctx := c.Request.Context()
			if core.LeaseFromContext(c) == nil || core.LeaseFromContext(c) != core.LeaseFromContext(ctx) {
				t.Error("another lease")
			}
			if err := errors.Join(core.Check(c), core.Commit(c, func() error { return nil }), idempotency.MarkEffect(c)); err != nil {
				t.Error(err)
			}
			if key := idempotency.DownstreamKey(c); key == "" || key != idempotency.DownstreamKey(ctx) || idempotency.Generation(c) != 1 {
				t.Errorf("%q, generation %d", key, idempotency.Generation(c))
			}
			c.String(http.StatusOK, fmt.Sprint(core.Fences(c)[0].Key))
		})
		testkit.Post(t, testkit.Serve(t, r), "/42").WantOwn(t, 200, "account/42")
	}
}
