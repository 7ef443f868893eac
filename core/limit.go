package core

import (
	"context"
	"fmt"
	"sync"

	"github.com/interlock-go/interlock/core/internal/requests"
)

// PerPrincipal throttles one principal: it bounds its share of this process's locks. It is no rate limit, which counts requests a second. Without
// it one principal, by mistake or on purpose, can hold so many locks or wait so
// often that others get none. The parameter who is the function that finds the
// principal of a request; see [RequestFunc].
//
// The requests of a principal may hold, or wait for, maxHeld different locks. At
// most maxWaiting of the requests may wait at a time. Both values are at least 1,
// and maxHeld is at least the number of templates of the guard; else the
// constructor returns [ErrConfig]. A request waits from when it asks for its locks
// until it has them, however short that is; a request that re-enters a lock of its
// context does not wait. A request counts until its handler has ended, however it
// ends. One more request is refused at once, before the store is asked, with
// [reason.PrincipalLimit] (429, RESOURCE_EXHAUSTED) and an invitation to come back.
//
// The requests of all guards that are given the same option value are counted
// together. An option value given to [New] counts the requests of all its guards
// without this option. The counts are of this process alone. They take memory only for
// principals that have a request under way. Default: no bound. For [New] or a guard.
func PerPrincipal(who RequestFunc, maxHeld, maxWaiting int) RequestOption {
	l := &limit{who: who, held: maxHeld, waiting: maxWaiting, users: make(map[string]*usage)}
	return requestOption(func(c *config) {
		switch {
		case who == nil:
			c.fail("PerPrincipal(nil, ...): the function must not be nil")
		case maxHeld < 1 || maxWaiting < 1:
			c.fail("PerPrincipal(..., %d, %d): both must be at least 1", maxHeld, maxWaiting)
		default:
			c.guard.limit = l
		}
	})
}

// limit counts what principals have. A lock is held once at a time, so it is
// enough to bound the different locks that a principal's requests are after:
// none of them has to be looked at again when it is granted.
type limit struct {
	who           RequestFunc
	held, waiting int

	mu    sync.Mutex
	users map[string]*usage // those with a request under way
}

// usage is what one principal has.
type usage struct {
	waiting int              // requests
	locks   map[lockName]int // requests that hold or wait for each
}

// lockName names a lock: the same key in two stores is two.
type lockName struct {
	locker *Locker
	key    string
}

// admitted is a request's share of its principal's limit.
type admitted struct {
	limit     *limit
	principal string
	locker    *Locker
	keys      []string
	waits     bool // guarded by limit.mu, as is over
	over      bool
}

// admit counts a request in, or says why not. One critical section decides both bounds
// and counts an admitted request.
func (lim *limit) admit(ctx context.Context, req Request, locker *Locker, keys []string) (*admitted, error) {
	principal, err := lim.who(ctx, requests.Copy(req))
	if err == nil && principal == "" {
		err = errNothingFound // all requests without a principal would share one limit
	}
	if err != nil {
		return nil, fmt.Errorf("interlock: finding the principal: %w", err)
	}
	a := &admitted{limit: lim, principal: principal, locker: locker, keys: keys, waits: !locker.holdsAll(ctx, keys)}
	lim.mu.Lock()
	defer lim.mu.Unlock()
	u := lim.users[principal]
	if u == nil {
		u = &usage{locks: make(map[lockName]int)}
		lim.users[principal] = u
	}
	if a.waits {
		u.waiting++
	}
	for _, key := range keys {
		u.locks[lockName{locker, key}]++
	}
	switch {
	case u.waiting > lim.waiting && a.waits:
		err = fmt.Errorf("%w: %d requests wait already", ErrPrincipalLimit, lim.waiting)
	case len(u.locks) > lim.held:
		err = fmt.Errorf("%w: more than %d locks", ErrPrincipalLimit, lim.held)
	}
	if err != nil {
		a.leaveLocked()
		return nil, err
	}
	return a, nil
}

// granted notes that the request does not wait any more.
func (a *admitted) granted() {
	a.limit.mu.Lock()
	defer a.limit.mu.Unlock()
	if a.waits {
		a.waits = false
		a.limit.users[a.principal].waiting--
	}
}

// leave counts the request out. Doing it again changes nothing.
func (a *admitted) leave() {
	a.limit.mu.Lock()
	defer a.limit.mu.Unlock()
	a.leaveLocked()
}

func (a *admitted) leaveLocked() {
	if a.over {
		return
	}
	a.over = true
	u := a.limit.users[a.principal]
	if a.waits {
		u.waiting--
	}
	for _, key := range a.keys {
		name := lockName{a.locker, key}
		if u.locks[name]--; u.locks[name] == 0 {
			delete(u.locks, name)
		}
	}
	if len(u.locks) == 0 { // so no request waits either
		delete(a.limit.users, a.principal)
	}
}

// holdsAll reports whether all the keys are held under ctx already, so that a
// lock of them is a re-entry.
func (l *Locker) holdsAll(ctx context.Context, keys []string) bool {
	for _, key := range keys {
		if !l.holds(ctx, key) {
			return false
		}
	}
	return true
}

func (l *Locker) holds(ctx context.Context, key string) bool {
	for lease := LeaseFromContext(ctx); lease != nil; lease = lease.outer() {
		for _, w := range lease.locks() {
			if lease.config.locker == l && w.Key() == key && l.locks.Live(w) {
				return true
			}
		}
	}
	return false
}
