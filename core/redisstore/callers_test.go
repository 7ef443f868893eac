//go:build integration

package redisstore_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/adapter"
	"github.com/interlock-go/interlock/core/reason"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/internal/redistest"
)

// The store names the holder, so that a request finds its own caller among the holders.
func TestARequestForALockOfItsCallerIsRefusedOnRedis(t *testing.T) {
	t.Parallel()
	server, prefix := redistest.Common(t)
	locker := func() *core.Locker {
		rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
		store, err := redisstore.New(rdb, redisstore.Prefix(prefix))
		if err != nil {
			t.Fatal(err)
		}
		l, err := core.New(store)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			_ = l.Close(ctx)
			_ = store.Close()
			_ = rdb.Close()
		})
		return l
	}
	gateway, ledger := locker(), locker()
	for name, take := range map[string]func() (*core.Lease, error){
		"exclusive": func() (*core.Lease, error) { return gateway.Lock(t.Context(), "account/exclusive") },
		"attentive": func() (*core.Lease, error) { return gateway.Lock(t.Context(), "account/attentive", core.Attentive()) },
		"shared":    func() (*core.Lease, error) { return gateway.LockShared(t.Context(), "account/shared") },
	} {
		lease, err := take()
		if err != nil {
			t.Fatal(err)
		}
		request := &adapter.Message{Name: "debit", Metadata: map[string]string{core.HeldHeader: core.HeldFor(lease.Context())}}
		refusal := core.Serialize(ledger, "account/"+name, core.Wait(time.Minute)).Do(t.Context(), request, func(context.Context) bool {
			t.Errorf("%s: the service ran beside its caller", name)
			return true
		})
		if refusal == nil || refusal.Reason != reason.HeldByCaller {
			t.Errorf("%s: %v; want held-by-caller", name, refusal)
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
