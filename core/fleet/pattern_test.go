//go:build integration

package fleet_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/internal/redistest"
)

// counted counts the locks that a client reads.
type counted struct {
	redis.Hook
	locks atomic.Int64
}

func (*counted) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (*counted) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (c *counted) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			if cmd.Name() == "hlen" { // once for each lock
				c.locks.Add(1)
			}
		}
		return next(ctx, cmds)
	}
}

// A list of 300,000 locks by the end of a key would ask for each of them.
func TestAListReadsTheLocksThatFit(t *testing.T) {
	t.Parallel()
	srv, name := redistest.Common(t)
	rdb := srv.Client(t)
	w := worldOf(t, rdb, name)
	process := w.process()
	for i := range 20 {
		w.lock(process, fmt.Sprint("account/", i))
	}
	reads := &counted{}
	rdb.AddHook(reads)
	var found []string
	for l, err := range w.fleet().Locks(t.Context(), "*/7") {
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, l.Key)
	}
	if len(found) != 1 || found[0] != "account/7" || reads.locks.Load() != 1 {
		t.Errorf("%q after %d locks were read; want account/7, and no other lock read", found, reads.locks.Load())
	}
}
