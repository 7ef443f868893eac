//go:build long && unix

package faults

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/internal/redistest"
)

// oldScript reads a script of the release that knew no places. The tests of the scripts
// have the same files.
func oldScript(t *testing.T, name string) *redis.Script {
	t.Helper()
	source, err := os.ReadFile(filepath.Join("../../core/internal/rediswire/testdata", name+"-before-places.lua"))
	if err != nil {
		t.Fatal(err)
	}
	return redis.NewScript(string(source))
}

// oldProcess is a process of that release: it locks by the scripts that it had, and
// waits as it did.
type oldProcess struct {
	rdb    *redis.Client
	id     string // by which it waits
	owners atomic.Int64

	acquire, release *redis.Script
}

func newOldProcess(t *testing.T, rdb *redis.Client) *oldProcess {
	t.Helper()
	return &oldProcess{acquire: oldScript(t, "acquire"), release: oldScript(t, "release"), rdb: rdb, id: fmt.Sprintf("%016x%016x", rand.Uint64(), rand.Uint64())}
}

// oldLease is what it holds.
type oldLease struct {
	process    *oldProcess
	key, owner string
	token      int64
}

const oldLeaseTime = 10 * time.Second

// try makes one try, and returns nil if the lock is held. Then after is what remains of
// the holder's lease, as the script says.
func (o *oldProcess) try(ctx context.Context, key, rest, waiter string) (held *oldLease, after time.Duration, err error) {
	owner := fmt.Sprint(o.id, ".", o.owners.Add(1))
	lock := "interlock:{" + key + "}"
	reply, err := o.acquire.Run(ctx, o.rdb, []string{lock, lock + ":fence"},
		owner, oldLeaseTime.Milliseconds(), (oldLeaseTime + time.Minute).Milliseconds(), rest, waiter).Result()
	switch got := reply.(type) {
	case int64:
		return &oldLease{o, key, owner, got}, 0, nil
	case []any:
		if len(got) == 3 {
			if ms, ok := got[1].(int64); ok {
				return nil, time.Duration(max(ms, 1)) * time.Millisecond, nil
			}
		}
	}
	return nil, 0, errors.Join(err, fmt.Errorf("the old script answers %v", reply))
}

// lock waits for a lock: for the message of a release, and its turn in the list of it,
// or the end of the holder's lease.
func (o *oldProcess) lock(ctx context.Context, key string) (*oldLease, error) {
	sub := o.rdb.Subscribe(ctx, "interlock:{"+key+"}:free")
	defer func() { _ = sub.Close() }() // it is not used again
	if _, err := sub.Receive(ctx); err != nil {
		return nil, err
	}
	messages := sub.Channel()
	for rest := ""; ; {
		held, after, err := o.try(ctx, key, rest, o.id)
		if err != nil || held != nil {
			return held, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(after):
			rest = ""
		case m := <-messages:
			before, behind, named := strings.Cut(m.Payload, o.id)
			if rest = strings.TrimPrefix(behind, ","); !named {
				rest = ""
			}
			time.Sleep(time.Duration(strings.Count(before, ",")) * 5 * time.Millisecond)
		}
	}
}

func (l *oldLease) release(ctx context.Context) error {
	n, err := l.process.release.Run(ctx, l.process.rdb, []string{"interlock:{" + l.key + "}"}, l.owner, "PUBLISH", "").Int64()
	if err == nil && n != 1 {
		err = fmt.Errorf("the old release answers %d", n)
	}
	return err
}

// hall is who is in a key's section, outside of Redis.
type hall struct {
	mu                   sync.Mutex
	alone, beside        int // holders that exclude all others, and those with places
	most                 int // of those with places
	byOld, byNew, places int // how many came
}

// visit enters and leaves, and says what is wrong.
func (h *hall) visit(alone, old bool) error {
	err := h.pass(1, alone, old)
	time.Sleep(rand.N(2 * time.Millisecond))
	return errors.Join(err, h.pass(-1, alone, old))
}

func (h *hall) pass(by int, alone, old bool) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	came := max(by, 0)
	switch {
	case !alone:
		h.beside, h.places = h.beside+by, h.places+came
	case old:
		h.alone, h.byOld = h.alone+by, h.byOld+came
	default:
		h.alone, h.byNew = h.alone+by, h.byNew+came
	}
	if h.alone > 1 || h.alone == 1 && h.beside > 0 || h.beside > h.most {
		return fmt.Errorf("together: %d that are to be alone, %d with places", h.alone, h.beside)
	}
	return nil
}

// Processes of both releases use the same keys for as long as a rollout lasts. What is
// exclusive is alone, there are at most two permits, and no process is forgotten.
func TestRollingDeployUnderLoad(t *testing.T) {
	s := stage(t)
	srv := redistest.Start(t)
	rdb := srv.Client(t)
	halls := map[string]*hall{"shared": {most: math.MaxInt}, "permit": {most: 2}}
	ctx, stop := context.WithTimeout(t.Context(), 5*time.Second)
	defer stop()
	var wg sync.WaitGroup
	section := func(key string, alone, old bool, take func() (func() error, error)) {
		release, err := take()
		if err == nil {
			err = errors.Join(halls[key].visit(alone, old), release())
		}
		if err != nil {
			t.Errorf("%s, alone %v, old %v: %v", key, alone, old, err)
		}
	}
	for range 2 {
		l, old := s.locker(rdb), newOldProcess(t, srv.Client(t))
		for key := range halls {
			for i := range 4 {
				opts := []core.Option{core.Shared()}
				switch {
				case i == 0:
					opts = nil
				case key == "permit":
					opts = []core.Option{core.Permits(2)}
				}
				wg.Go(func() {
					for ctx.Err() == nil {
						section(key, i == 0, false, func() (func() error, error) {
							lease, err := patiently(l, key, new(atomic.Int64), opts...)
							return func() error { return release(lease) }, err
						})
						time.Sleep(rand.N(10 * time.Millisecond))
					}
				})
			}
			wg.Go(func() {
				for ctx.Err() == nil {
					section(key, true, true, func() (func() error, error) {
						lease, err := old.lock(t.Context(), key)
						return func() error { return lease.release(t.Context()) }, err
					})
					time.Sleep(rand.N(10 * time.Millisecond))
				}
			})
		}
	}
	wg.Wait()
	for key, h := range halls {
		t.Logf("%s: %d exclusive holds of the old release, %d of today's, %d places", key, h.byOld, h.byNew, h.places)
		if h.byOld == 0 || h.byNew == 0 || h.places == 0 {
			t.Errorf("%s: that is no test of a rollout", key)
		}
	}
	s.clean(srv)
}
