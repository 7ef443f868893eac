//go:build long

package changeover

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/alongside"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/internal/redistest"
)

// Of docs/moving.md.

var raise = redis.NewScript(`local n = math.max((tonumber(redis.call("GET", KEYS[1])) or 0) + 1, tonumber(ARGV[1]))
redis.call("SET", KEYS[1], string.format("%.0f", n)) return n`)

// counted is an account with a resource that remembers the greatest number of a write.
type counted struct {
	rdb    *redis.Client
	rs     *redsync.Redsync
	locker *core.Locker
	id     string
	seen   int64
}

// write writes as a process of a release, and reports whether the resource took the write.
// Raised says whether the release with both locks raises the counter, or writes with its token.
func (c *counted) write(ctx context.Context, r release, raised bool) (taken bool, err error) {
	at := func(number int64) {
		if taken = number >= c.seen; taken {
			c.seen = number
		}
	}
	if r == old {
		mutex := c.rs.NewMutex("account:" + c.id)
		if err := mutex.LockContext(ctx); err != nil {
			return false, err
		}
		number, err := c.rdb.Incr(ctx, "fence:"+c.id).Result()
		at(number)
		if _, unlocked := mutex.UnlockContext(ctx); unlocked != nil {
			return false, unlocked
		}
		return taken, err
	}
	debit := func(ctx context.Context) error {
		if r == ours || !raised {
			at(core.LeaseFromContext(ctx).Token())
			return nil
		}
		rdb, id := c.rdb, c.id
		token, err := raise.Run(ctx, rdb, []string{"fence:" + id}, core.LeaseFromContext(ctx).Token()).Int64()
		at(token)
		return err
	}
	err = c.locker.Do(ctx, "account/"+c.id, func(ctx context.Context) error {
		if r == ours {
			return debit(ctx)
		}
		return alongside.Do(ctx, oldRedsync(c.rs.NewMutex("account:"+c.id), 8*time.Second), debit)
	}, core.Wait(time.Minute))
	return taken, err
}

// A service that fences by a counter moves to tokens, and back. Each pair of releases works side
// by side, as the page says that they may.
func TestACounterOfFencesGrowsThroughTheChange(t *testing.T) {
	rdb := redistest.Start(t).Client(t)
	store, err := redisstore.New(rdb)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	locker, err := core.New(store)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = locker.Close(context.Background()) })
	rs := redsync.New(goredis.NewPool(rdb))

	for _, raised := range []bool{true, false} {
		t.Run(fmt.Sprintf("raised %v", raised), func(t *testing.T) {
			c := &counted{rdb: rdb, rs: rs, locker: locker, id: fmt.Sprint(raised)}
			refused := 0
			for _, pair := range [][2]release{{old, both}, {both, ours}, {ours, both}, {both, old}} {
				for range 100 {
					r := pair[rand.IntN(2)]
					taken, err := c.write(t.Context(), r, raised)
					if err != nil {
						t.Fatalf("%s beside %s: %v", pair[0], pair[1], err)
					}
					if !taken {
						refused++
					}
				}
			}
			// Without the raised counter the numbers of the old release are far below the tokens.
			if raised == (refused > 0) {
				t.Errorf("%d of 400 writes are refused with the counter raised: %v; want none if it is raised, and some if not", refused, raised)
			}
		})
	}
}
