//go:build long

package histories

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/trust/internal/history"
)

// product is the lock that is to be shown right; its control is a plain lock made by
// hand without any of the defects below.
const (
	product = "interlock"
	control = "plain lock"
)

// broken are the locks with a defect, which every run has to find.
var broken = []string{
	"release without owner check",
	"release in two steps",
	"frozen fence",
	"fence reset by the release",
	"lease shorter than trusted",
	"taken without looking",
	"watchdog that renews nothing",
	"refusal taken for a grant",
	"unfenced write",
	"fence checked at the write alone",
}

// subject makes the lock of a name.
func (w *worker) subject(name string, store core.Store, locker *core.Locker, rdb *redis.Client) (*subject, error) {
	s := &subject{name: name, lease: shortLease, overrun: 0.2, careless: true}
	plain := &plainLock{rdb: rdb, owner: fmt.Sprintf("%d-", w.Run), short: 1}
	s.lock = plain.lock
	if s.places = hasPlaces(name); s.places {
		return s, w.placesOf(s, store, locker, rdb)
	}
	switch name {
	case product:
		s.lock, s.lease, s.overrun, s.careless = onLocker(locker), lease, 0.003, false
	case control:
	case "release without owner check":
		plain.blind = true
	case "release in two steps":
		plain.twoSteps, s.overrun = true, 0.6 // so that there are holders to be robbed
	case "frozen fence":
		plain.frozen = true
	case "fence reset by the release":
		plain.forgets = true
	case "lease shorter than trusted":
		plain.short = 4
	case "taken without looking":
		plain.overwrites = true
	case "watchdog that renews nothing":
		return s, s.on(deadWatchdog{store})
	case "refusal taken for a grant":
		return s, s.on(&doubleGrant{Store: store})
	case "unfenced write":
		s.write = unchecked
	case "fence checked at the write alone":
		s.write, s.overrun = lateCheck, 0.6 // it takes two in a row
	default:
		return nil, fmt.Errorf("no such lock: %q", name)
	}
	return s, nil
}

// on has the subject use the product's lock on a store with a defect. That locker
// lives as long as the process.
func (s *subject) on(store core.Store) error {
	locker, err := core.New(store, core.Watchdog(shortLease))
	s.lock = onLocker(locker)
	return err
}

func onLocker(locker *core.Locker) func(context.Context, string, how) (grant, error) {
	return func(ctx context.Context, key string, how how) (grant, error) {
		opts := []core.Option{core.Wait(how.patience())}
		switch how.way {
		case history.Share:
			opts = append(opts, core.Shared())
		case history.Permit:
			opts = append(opts, core.Permits(permits))
		case history.Alone:
		}
		if how.fixed {
			opts = append(opts, core.TTL(lease/2))
		}
		take := locker.Lock
		if how.try {
			take = locker.TryLock
		}
		g, err := take(ctx, key, opts...)
		if err != nil {
			return nil, err // not a nil *core.Lease in an interface
		}
		return g, nil
	}
}

// deadWatchdog says that it has renewed, and has not.
type deadWatchdog struct{ core.Store }

func (deadWatchdog) Renew(_ context.Context, batch []driver.Renewal, done func(int, bool, error)) {
	for i := range batch {
		done(i, false, nil)
	}
}

// doubleGrant takes some refusals for grants.
type doubleGrant struct {
	core.Store
	refused atomic.Int64
}

func (d *doubleGrant) Acquire(ctx context.Context, req driver.AcquireRequest) (driver.Reply, error) {
	sent := time.Now()
	rep, err := d.Store.Acquire(ctx, req)
	if err == nil && !rep.Granted && d.refused.Add(1)%5 == 0 {
		return driver.Reply{Granted: true, Token: sent.UnixMicro(), Sent: sent}, nil
	}
	return rep, err
}

// plainLock is the textbook's lock on one server: SET NX PX, compare and delete, a
// counter for tokens. Each field but the first two is a defect.
type plainLock struct {
	rdb   *redis.Client
	owner string
	last  atomic.Int64

	blind      bool          // the release deletes whosever lock it is
	twoSteps   bool          // the release looks, and deletes later
	frozen     bool          // every token is the same
	forgets    bool          // the release forgets the last token
	overwrites bool          // the acquire does not look whether it is held
	short      time.Duration // the lease on the server is so many times shorter than trusted
}

// shortLease is the lease of all locks but the product's, so that careless holders are
// often late.
const shortLease = lease / 5

var (
	plainAcquire = redis.NewScript(`
if ARGV[3] == '0' and redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return redis.call('INCR', KEYS[2])`)
	plainRelease = redis.NewScript(`
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])`)
)

func (p *plainLock) lock(ctx context.Context, key string, how how) (grant, error) {
	owner := p.owner + strconv.FormatInt(p.last.Add(1), 10)
	for until := time.Now().Add(2 * lease); ; pause(ctx, time.Duration(1+rand.IntN(4))*time.Millisecond) {
		sent := time.Now()
		token, err := plainAcquire.Run(ctx, p.rdb, []string{"plain/" + key, "plain/" + key + "/fence"},
			owner, (shortLease / p.short).Milliseconds(), p.overwrites).Int64()
		if err != nil {
			return nil, err
		}
		if token > 0 {
			if p.frozen {
				token = 1
			}
			g := &plainGrant{lock: p, key: key, owner: owner, token: token, until: sent.Add(shortLease - 4*time.Millisecond)}
			return g.lasting(ctx), nil
		}
		if how.try || time.Now().After(until) {
			return nil, core.ErrHeld
		}
	}
}

// plainGrant is a hold of it, good until its lease ends.
type plainGrant struct {
	lock       *plainLock
	key, owner string
	token      int64
	until      time.Time
	ctx        context.Context
	cancel     context.CancelFunc
}

// lasting gives the hold its context.
func (g *plainGrant) lasting(ctx context.Context) *plainGrant {
	g.ctx, g.cancel = context.WithDeadline(context.WithoutCancel(ctx), g.until)
	return g
}

func (g *plainGrant) Token() int64             { return g.token }
func (g *plainGrant) Deadline() time.Time      { return g.until }
func (g *plainGrant) Context() context.Context { return g.ctx }
func (g *plainGrant) Err() error {
	if time.Now().Before(g.until) {
		return nil
	}
	return core.ErrLost
}

func (g *plainGrant) Release(ctx context.Context) error {
	g.cancel()
	rdb, key := g.lock.rdb, "plain/"+g.key
	if g.lock.forgets {
		if err := rdb.Del(ctx, key+"/fence").Err(); err != nil {
			return err
		}
	}
	switch {
	case g.lock.blind:
		return rdb.Del(ctx, key).Err()
	case g.lock.twoSteps:
		if holder, err := g.holder(ctx); err != nil || holder != g.owner {
			return errors.Join(core.ErrLost, err)
		}
		g.dawdle(ctx)
		return rdb.Del(ctx, key).Err()
	}
	n, err := plainRelease.Run(ctx, rdb, []string{key}, g.owner).Int64()
	if err == nil && n == 0 {
		return core.ErrLost
	}
	return err
}

func (g *plainGrant) holder(ctx context.Context) (string, error) {
	holder, err := g.lock.rdb.Get(ctx, "plain/"+g.key).Result()
	if errors.Is(err, redis.Nil) {
		return "", nil
	}
	return holder, err
}

// dawdle lets so much time pass between the look and the deletion that another
// process has the lock, if it wants it.
func (g *plainGrant) dawdle(ctx context.Context) {
	for late := g.until.Add(shortLease); time.Now().Before(late); pause(ctx, shortLease/50) {
		if holder, err := g.holder(ctx); err != nil || holder != "" && holder != g.owner {
			return
		}
	}
}
