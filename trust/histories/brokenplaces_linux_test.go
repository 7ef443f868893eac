//go:build long

package histories

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/trust/internal/history"
)

// brokenPlaces are the locks with places and a defect, which every run has to find.
var brokenPlaces = []string{
	"expired permit adds one",
	"permit without renewal",
	"shared beside an exclusive holder",
	"exclusive beside the sharers",
	"permits counted by each process",
	"permit of the dead is gone",
	"permits with one token",
}

// TestBrokenPlacesAreCaught is TestBrokenLocksAreCaught for locks that several can hold.
func TestBrokenPlacesAreCaught(t *testing.T) {
	wantCaught(t, []string{productPlaces, plainPlaces}, brokenPlaces)
}

// placesOf makes a subject's lock with places.
func (w *worker) placesOf(s *subject, store core.Store, locker *core.Locker, rdb *redis.Client) error {
	plain := &plainPlace{rdb: rdb, owner: fmt.Sprintf("%d-%x-", w.Run, rand.Uint32())}
	s.lock = plain.lock
	switch s.name {
	case productPlaces:
		s.lock, s.lease, s.overrun, s.careless = onLocker(locker), lease, 0.01, false
	case plainPlaces:
	case "expired permit adds one":
		plain.adds = 1
	case "permit without renewal":
		return s.on(deadWatchdog{store})
	case "shared beside an exclusive holder":
		plain.blindSharers = 1
	case "exclusive beside the sharers":
		plain.blindExclusive = 1
	case "permits counted by each process":
		plain.alone = make(map[string]int)
	case "permit of the dead is gone":
		plain.endless = 1
	case "permits with one token":
		plain.frozen = true
	}
	return nil
}

// newLockers makes lockers as two processes have them, and a function that ends them.
func (w *worker) newLockers(t *testing.T, store closer) (lockers [2]*core.Locker, done func()) {
	t.Helper()
	for i := range lockers {
		l, err := core.New(store, core.Watchdog(lease))
		if err != nil {
			t.Fatal(err)
		}
		lockers[i] = l
	}
	return lockers, func() {
		bound, cancel := context.WithTimeout(context.Background(), 5*lease)
		defer cancel()
		errs := []error{lockers[0].Close(bound), lockers[1].Close(bound), store.Close()}
		for _, c := range w.clients {
			errs = append(errs, c.Close())
		}
		if err := errors.Join(errs...); err != nil {
			t.Error(err)
		}
	}
}

// plainPlace is the textbook's lock for several on one server: a sorted set of owners
// and the ends of their leases, and the exclusive owner's key. Each field but the
// first three is a defect.
type plainPlace struct {
	rdb   *redis.Client
	owner string
	last  atomic.Int64

	adds           int  // a release adds a permit, even if its own had ended
	blindSharers   int  // a sharer does not look for an exclusive holder
	blindExclusive int  // the exclusive holder does not look for sharers
	endless        int  // a place has no end
	frozen         bool // every permit has the same token

	mu    sync.Mutex
	alone map[string]int // the permits that this process has given, not seen by others
}

var (
	// KEYS: places, exclusive owner, fence, permits added. ARGV: owner, lease,
	// way, permits, blindSharers, blindExclusive, endless.
	plainEnter = redis.NewScript(`
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
local n = redis.call('ZCARD', KEYS[1]) - (redis.call('GET', KEYS[4]) or 0)
local owned = redis.call('EXISTS', KEYS[2]) == 1
if ARGV[3] == '0' then
	if owned or n > 0 and ARGV[6] == '0' then return 0 end
	redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2])
else
	if owned and ARGV[5] == '0' or ARGV[3] == '2' and n >= tonumber(ARGV[4]) then return 0 end
	redis.call('ZADD', KEYS[1], ARGV[7] == '1' and '+inf' or now + ARGV[2], ARGV[1])
end
return redis.call('INCR', KEYS[3])`)
	// KEYS as above. ARGV: owner, adds.
	plainLeave = redis.NewScript(`
local n = redis.call('ZREM', KEYS[1], ARGV[1])
if redis.call('GET', KEYS[2]) == ARGV[1] then n = redis.call('DEL', KEYS[2]) end
if n == 0 and ARGV[2] == '1' then redis.call('INCR', KEYS[4]) end
return n`)
)

func placeKeys(key string) []string {
	key = "plain/" + key
	return []string{key, key + "/exclusive", key + "/fence", key + "/added"}
}

func (p *plainPlace) lock(ctx context.Context, key string, how how) (grant, error) {
	owner := p.owner + strconv.FormatInt(p.last.Add(1), 10)
	for until := time.Now().Add(how.patience()); ; pause(ctx, time.Duration(1+rand.IntN(4))*time.Millisecond) {
		sent := time.Now()
		token, err := p.enter(ctx, key, owner, how.way)
		if err != nil {
			return nil, err
		}
		if token > 0 {
			if p.frozen && how.way == history.Permit {
				token = 1
			}
			g := &plainGrant{key: key, owner: owner, token: token, until: sent.Add(shortLease - 4*time.Millisecond)}
			return &placeGrant{g.lasting(ctx), p, how.way}, nil
		}
		if how.try || time.Now().After(until) {
			return nil, core.ErrHeld
		}
	}
}

// enter makes one try. It returns a token, or 0.
func (p *plainPlace) enter(ctx context.Context, key, owner string, way history.Way) (int64, error) {
	keys := placeKeys(key)
	if p.alone != nil && way == history.Permit {
		p.mu.Lock()
		full := p.alone[key] >= permits
		if !full {
			p.alone[key]++
		}
		p.mu.Unlock()
		if full {
			return 0, nil
		}
		token, err := p.rdb.Incr(ctx, keys[2]).Result()
		if err != nil {
			p.giveBack(key)
		}
		return token, err
	}
	return plainEnter.Run(ctx, p.rdb, keys, owner, shortLease.Milliseconds(), int(way), permits,
		p.blindSharers, p.blindExclusive, p.endless).Int64()
}

// giveBack gives a permit back that only this process knows.
func (p *plainPlace) giveBack(key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.alone[key]--
}

// placeGrant is a hold of a plainPlace.
type placeGrant struct {
	*plainGrant
	place *plainPlace
	way   history.Way
}

func (g *placeGrant) Release(ctx context.Context) error {
	g.cancel()
	if g.place.alone != nil && g.way == history.Permit {
		g.place.giveBack(g.key)
		return nil
	}
	n, err := plainLeave.Run(ctx, g.place.rdb, placeKeys(g.key), g.owner, g.place.adds).Int64()
	if err == nil && n == 0 {
		return core.ErrLost
	}
	return err
}
