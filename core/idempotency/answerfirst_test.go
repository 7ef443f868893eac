package idempotency_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/memstore"
)

// slow makes one kind of request take a time.
func slow(op memstore.Op, d time.Duration) func(memstore.Request) memstore.Fault {
	return func(r memstore.Request) memstore.Fault {
		if r.Op != op {
			return memstore.Fault{}
		}
		return memstore.Delay(d / 2)
	}
}

// The answer waits until the store has it, also where the commit takes longer than the release.
func TestTheAnswerWaitsForItsCommitAndWithAnswerFirstNotForTheRelease(t *testing.T) {
	const brief, long = 20 * time.Millisecond, 100 * time.Millisecond
	n := 0
	enlists := func(ctx context.Context, a endpoint.Attempt) (endpoint.Response, bool) {
		_, err := record.Enlist(ctx, func(context.Context, record.Claim) (record.Unit, error) { return &slowUnit{brief}, nil })
		if err != nil {
			t.Error(err)
		}
		return answers(200, &n)(ctx, a)
	}
	for name, c := range map[string]struct {
		opts            []core.GuardOption
		handler         handler
		commit, release time.Duration
		want            time.Duration
	}{
		"default, the release is slow":      {nil, answers(200, &n), brief, long, long},
		"default, the commit is slow":       {nil, answers(200, &n), long, brief, long},
		"answer first, the release is slow": {[]core.GuardOption{core.AnswerFirst()}, answers(200, &n), brief, long, brief},
		"answer first, the commit is slow":  {[]core.GuardOption{core.AnswerFirst()}, answers(200, &n), long, brief, long},
		"default, in a transaction":         {nil, enlists, 0, long, brief + long},
		"answer first, in a transaction":    {[]core.GuardOption{core.AnswerFirst()}, enlists, 0, long, brief},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				n = 0
				locks := memstore.New()
				locker, err := core.New(locks)
				if err != nil {
					t.Fatal(err)
				}
				e := w.engine(idempotency.Under(core.Serialize(locker, "account", c.opts...)))
				locks.Intercept(slow(memstore.Release, c.release))
				w.store.Intercept(slow(memstore.Commit, c.commit))
				begin := time.Now()
				w.want(serve(w.Context(), e, post("k"), c.handler), "200 run 1")
				if took := time.Since(begin); took != c.want {
					t.Errorf("answered after %v; want %v", took, c.want)
				}
				if err := locker.Close(w.Context()); err != nil {
					t.Error(err)
				}
				if _, _, held := locks.Holder("account"); held {
					t.Error("the lock is held")
				}
			})
		})
	}
}

// slowUnit is a transaction that takes a time to commit.
type slowUnit struct{ takes time.Duration }

func (u *slowUnit) Commit(context.Context, record.CommitRequest) (record.CommitReply, error) {
	time.Sleep(u.takes)
	return record.CommitReply{State: record.StateGranted}, nil
}

func (u *slowUnit) Rollback(context.Context) error { return errors.New("not in this test") }
