//go:build long

package changeover

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

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
	other  func() alongside.Lock // of the library of the old release
	locker *core.Locker
	id     string
	seen   int64
}

// write writes as a process of a release, and reports whether the resource took the write.
// Raised says whether the releases with Interlock raise the counter, or write with their token.
func (c *counted) write(ctx context.Context, r release, raised bool) (taken bool, err error) {
	at := func(number int64) {
		if taken = number >= c.seen; taken {
			c.seen = number
		}
	}
	if r == old {
		other := c.other()
		if err := other.Acquire(ctx); err != nil {
			return false, err
		}
		number, err := c.rdb.Incr(ctx, "fence:"+c.id).Result()
		at(number)
		return taken, errors.Join(err, other.Release(ctx))
	}
	debit := func(ctx context.Context) error {
		if !raised {
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
		return alongside.Do(ctx, c.other(), debit)
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

	for library, other := range libraries {
		for _, raised := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, raised %v", library, raised), func(t *testing.T) {
				id := fmt.Sprint(library, raised)
				c := &counted{rdb: rdb, locker: locker, id: id, other: func() alongside.Lock { return other(rdb, "account:"+id, time.Minute) }}
				refused := c.change(t, raised)
				// Without the raised counter the numbers of the old release are far below the tokens.
				if raised == (refused > 0) {
					t.Errorf("%d of 700 writes are refused with the counter raised: %v; want none if it is raised, and some if not", refused, raised)
				}
			})
		}
	}
}

// change writes through all pairs of releases, there and back, and returns how many writes the
// resource has refused.
func (c *counted) change(t *testing.T, raised bool) (refused int) {
	for _, pair := range [][2]release{
		{old, both},
		{both, ours},
		{ours, both},
		{both, old},
		{old, old},
		{ours, ours},
		{old, old}, // no caller wants the key while the release with both runs
	} {
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
	return refused
}
