package fleet

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/internal/ident"
	"github.com/interlock-go/interlock/core/internal/rediswire"
)

// ErrNotServed says that a store does not have the asked information: of the stores that [On]
// takes, none keeps a list of processes.
var ErrNotServed = errors.New("interlock: the store does not have this")

// Lister shows the locks of a store to operators. The stores in memory and on PostgreSQL, etcd and
// ZooKeeper have it; no lock depends on it. Package drivertest tests it. All methods are safe for
// concurrent use.
type Lister interface {
	// Look returns the state of the lock of a key. A key that was never locked has a View with
	// its key alone. The error matches [driver.ErrKeyOccupied] if the key has a value that is no lock.
	Look(ctx context.Context, key string) (driver.View, error)

	// List goes through the locks that are held or kept, with keys that begin with a text. It reads
	// a bounded page at a time. A lock that is held all the time is returned once. An error ends the
	// iteration, unless it comes with a View that has a key: then the lock cannot be read, as after
	// damage, and the iteration goes on. Holders may lack their Host.
	List(ctx context.Context, begin string) iter.Seq2[driver.View, error]
}

// Stored shows and repairs the locks of a store that is a [Lister], such as the stores on
// PostgreSQL, etcd and ZooKeeper, as [Fleet] does on Redis. [On] makes one. It is safe for
// concurrent use, and has nothing to close.
//
// These stores do not know the names of processes, except for the host and the process that etcd
// and ZooKeeper have of a holder: [Holder.Locker] and [Waiter.Locker] have the random id of the
// locker, which the debug page and the logs of its process show.
type Stored struct {
	store   driver.Store
	lister  Lister
	records record.Lister // nil: the store keeps no records
	log     *slog.Logger
}

// On makes a [Stored] on a store. The only option that counts is [Logger]. The error matches
// [driver.ErrConfig]: the store is no [Lister].
func On(store driver.Store, opts ...Option) (*Stored, error) {
	set := settings{log: slog.Default()}
	for _, o := range opts {
		if o != nil {
			o(&set)
		}
	}
	lister, ok := store.(Lister)
	if !ok {
		return nil, fmt.Errorf("%w: %T does not show its locks (fleet.Lister)", driver.ErrConfig, store)
	}
	records, _ := store.(record.Lister)
	return &Stored{store: store, lister: lister, records: records, log: set.log}, nil
}

// Locks goes through the held or kept locks with keys that fit a pattern, as [Fleet.Locks] does.
// Their order is the store's. Locks that cannot be read, as after damage, are an [ErrIncomplete] when all
// others were returned; it names the first. If the pattern is one key, the error is as of Inspect.
func (s *Stored) Locks(ctx context.Context, pattern string) iter.Seq2[Lock, error] {
	return func(yield func(Lock, error) bool) {
		if exactly(pattern) {
			l, err := s.Inspect(ctx, pattern)
			if err != nil || !l.Free() {
				yield(l, err)
			}
			return
		}
		begin, all := literal(pattern)
		var unread error
		for v, err := range s.lister.List(ctx, begin) {
			switch {
			case err != nil && v.Key == "":
				yield(Lock{}, err)
				return
			case !all && !fits(pattern, v.Key):
			case err != nil:
				unread = cmp.Or(unread, fmt.Errorf("%w: %w", ErrIncomplete, err))
			case !yield(lockOf(&v), nil):
				return
			}
		}
		if unread != nil {
			yield(Lock{}, unread)
		}
	}
}

// Inspect reads one lock, as [Fleet.Inspect] does.
func (s *Stored) Inspect(ctx context.Context, key string) (Lock, error) {
	v, err := s.lister.Look(ctx, key)
	if err != nil {
		return Lock{}, err
	}
	return lockOf(&v), nil
}

// lockOf makes the Lock of a view.
func lockOf(v *driver.View) Lock {
	l := Lock{Key: v.Key, Held: len(v.Holders), Fence: v.Token, Kept: v.Kept}
	for _, h := range v.Holders {
		if l.Kind = Exclusive; h.Place {
			l.Kind = Places
		}
		one := holderOf(rediswire.HolderView{Owner: h.Owner, Token: h.Token}, h.Left, v.Now)
		one.Whole = h.Whole
		one.Locker = Locker{Host: h.Host, PID: h.PID}
		one.Locker.ID, _, _ = strings.Cut(h.Owner, ":")
		l.Holders = append(l.Holders, one)
	}
	for w := range v.Waiting.All() {
		l.Waiters = append(l.Waiters, Waiter{
			Locker: Locker{ID: w.ID()}, Place: w.Place(), Called: w.Called(), Kept: len(l.Waiters) < v.KeptFor,
		})
	}
	return l
}

// Lockers returns [ErrNotServed]: a locker announces itself on Redis alone.
func (s *Stored) Lockers(context.Context) iter.Seq2[Locker, error] {
	return func(yield func(Locker, error) bool) {
		yield(Locker{}, fmt.Errorf("%w: processes announce themselves on Redis alone; the locks name the ids of their lockers", ErrNotServed))
	}
}

// Release takes a lock, or one place of it, from the holder with the token, as [Fleet.Release] does.
// The holder finds out at its next renewal that it has lost the lock (core.OnLost, with the reason
// observe.LossRevoked), or when it asks the store.
// The errors are [ErrNoGrant] and those of the store, which match [ErrOutcomeUnknown] if it is not known
// whether the lock was released.
func (s *Stored) Release(ctx context.Context, key string, token int64) (Holder, error) {
	l, err := s.Inspect(ctx, key)
	if err != nil {
		return Holder{}, err
	}
	h, ask, err := l.grant(token)
	if err == nil {
		ask.Revoked = h.revoked()
		err = release(ctx, s.store, ask, token)
	}
	if err != nil {
		return Holder{}, err
	}
	s.log.InfoContext(ctx, "interlock: an operator has released a lock", "key_hash", ident.Hash(key), "kind", l.Kind,
		"token", token, "owner", h.Owner, "operator", operator(ctx))
	return h, nil
}

// ReleaseKept returns [ErrNotServed]: the stores keep a lock for some seconds at most.
func (s *Stored) ReleaseKept(context.Context, string) (Lock, error) {
	return Lock{}, fmt.Errorf("%w: it keeps a lock for waiting processes for 4 s at most", ErrNotServed)
}

// Wait returns when the lock is free, as [Fleet.Wait] does. On a store without a clock a lock stays
// held after its holder has died, until a process asks for it.
func (s *Stored) Wait(ctx context.Context, key string) error {
	woken := make(chan struct{}, 1)
	stop := s.store.Watch("", key, time.Now(), func(driver.Signal) {
		select {
		case woken <- struct{}{}:
		default:
		}
	})
	defer stop()
	return awaitFree(ctx, woken, func() (time.Duration, error) {
		v, err := s.lister.Look(ctx, key)
		left := v.Kept
		for _, h := range v.Holders {
			left = max(left, h.Left)
		}
		if !v.Free() {
			left = max(left, time.Millisecond)
		}
		return left, err
	})
}

// Check looks at the server as the Check of the store does, if it has one, and takes a lock with a random
// key, which it gives back. The error says that the server does not answer, or refuses the lock; a lock
// that is refused by a server with unsafe settings is the error of the server in the report.
func (s *Stored) Check(ctx context.Context, _ string) (r Report, err error) {
	if checker, ok := s.store.(interface {
		Check(ctx context.Context) ([]string, error)
	}); ok {
		found, err := checker.Check(ctx)
		if err != nil {
			return r, err
		}
		for _, text := range found {
			if strings.HasPrefix(text, driver.NotKnown) {
				r.Notes = append(r.Notes, text)
			} else {
				r.Unsafe = append(r.Unsafe, text)
			}
		}
	}
	var took []time.Duration
	ask := driver.AcquireRequest{
		Key: "interlock doctor/" + rand.Text(), Owner: strings.ToLower(rand.Text()) + ":1", TTL: 10 * time.Second,
		Late: func(driver.Reply, error) {}, Deadline: time.Now().Add(5 * time.Second),
	}
	began := time.Now()
	err = try(ctx, s.store, ask, func() { // between two requests
		took = append(took, time.Since(began))
		began = time.Now()
	})
	if err != nil && len(r.Unsafe) > 0 { // which may say why
		r.Servers = []Server{{Err: err}}
		return r, nil
	}
	if err != nil {
		return r, err
	}
	slices.Sort(took)
	r.Servers = []Server{{RoundTrip: took[len(took)/2], Slowest: took[len(took)-1]}}
	return r, nil
}

// try takes a lock, renews it and gives it back. It calls each after each of these.
func try(ctx context.Context, store driver.Store, ask driver.AcquireRequest, each func()) error {
	rep, err := store.Acquire(ctx, ask)
	if each(); err != nil || !rep.Granted {
		return err
	}
	renewal := driver.Renewal{Key: ask.Key, Owner: ask.Owner, Kind: ask.Kind, TTL: ask.TTL, Asked: true}
	store.Renew(ctx, []driver.Renewal{renewal}, func(_ int, _ bool, renewed error) { err = renewed })
	each()
	_, released := store.Release(ctx, driver.ReleaseRequest{
		Key: ask.Key, Owner: ask.Owner, Kind: ask.Kind, Token: rep.Token, TTL: ask.TTL, Deadline: ask.Deadline,
	})
	each()
	return cmp.Or(err, released)
}
