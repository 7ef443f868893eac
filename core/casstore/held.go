package casstore

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/inflight"
)

// Lease is a lease that [Store.Held] takes: a *core.Lease of a locker on the store.
type Lease interface {
	Keys() []string
	TokenFor(key string) (token int64, ok bool)
	Err() error
}

// Held returns conditions for a transaction on the entries of the server, one for each key of an
// exclusive lease. They hold until the store has released the lock or another process has taken it
// over, also if others come, wait or leave meanwhile. Where callers of one process hand the lock on, the
// call of the next one makes the conditions of those before it fail.
//
// The first call for a lease sends a transaction for each key. It writes an entry that is deleted in
// the transaction that ends the hold. Later calls send nothing. The call lasts until the deadline of
// ctx at most, and without one for twice the time of [Timeout].
//
// The error is the lease's if that is not valid. It matches driver.ErrNotOwner if the lock is lost,
// driver.ErrConfig if the store does not know the lease, and [driver.ErrUnavailable] if the server does not
// answer. A shared lock or a permit has no such condition.
func (s *Store) Held(ctx context.Context, lease Lease) (all []Condition, err error) {
	if err := lease.Err(); err != nil {
		return nil, err
	}
	for _, key := range lease.Keys() {
		token, _ := lease.TokenFor(key)
		condition, err := s.keep(ctx, key, token)
		if err != nil {
			return nil, err
		}
		all = append(all, condition)
	}
	return all, lease.Err() // the lease may have ended meanwhile
}

// keep returns the condition that a hold goes on, for the lease that has a token.
func (s *Store) keep(ctx context.Context, key string, token int64) (c Condition, err error) {
	h := s.holderOf(key, token)
	if h == nil {
		return c, fmt.Errorf("%w: the store knows no exclusive lock of %q with this token: Held takes a lease of a locker on this store",
			driver.ErrConfig, key)
	}
	// One at a time: a second entry of one lease would make the first condition fail.
	select {
	case h.kept.busy <- struct{}{}:
		defer func() { <-h.kept.busy }()
	case <-ctx.Done():
		return c, inflight.Pending(ctx)
	}
	for known := false; !known && err == nil; {
		c, known, err = s.keepOnce(ctx, h, token)
	}
	return c, err
}

// keepOnce makes one try to write the entry of a hold.
func (s *Store) keepOnce(ctx context.Context, h *hold, token int64) (c Condition, known bool, err error) {
	s.mu.Lock()
	at, as, ending := h.at, h.as, h.ending
	c = Condition{s.names.held(h.key, h.owner), h.kept.at}
	keptFor := h.kept.token
	s.mu.Unlock()
	switch {
	case ending:
		return c, false, driver.ErrDeleted
	case keptFor > token:
		return c, false, driver.ErrPassedOn
	case keptFor == token:
		return c, true, nil
	}
	v, err := s.open(h.key, at, time.Time{})
	if err != nil {
		return c, false, err
	}
	txn := Txn{If: []Condition{{s.names.lock(h.key), at.lock.Revision}}}
	if !as.Kept {
		as.Kept = true
		switch txn, err = v.become(as); {
		case err != nil:
			return c, false, err
		case v.unsure:
			return c, false, s.relist(ctx, h)
		}
	}
	txn.If = append(txn.If, c)
	txn.Then = append(txn.Then, Op{Name: c.Name, Value: strconv.FormatInt(token, 10)})
	txn.Read = []string{s.names.lock(h.key), s.names.line(h.key), c.Name}
	txn.Else = txn.Read
	answer, received, err := s.persist(ctx, txn)
	if err != nil {
		return c, false, err
	}
	if _, err = s.judge(ctx, renewal{Renewal: driver.Renewal{Key: h.key, Owner: h.owner}, hold: h}, s.note(h.key, found{}, answer.Read[:2], received)); err != nil {
		return c, false, err
	}
	s.mu.Lock()
	if h.kept.at = answer.Read[2].Revision; answer.Done {
		h.kept.token = token
	}
	s.mu.Unlock()
	if !answer.Done { // the lock or the line was written since, or a try of unknown outcome was executed
		_ = s.relist(ctx, h) // else the next try fails as well
	}
	return c, false, nil
}

// holderOf returns the exclusive hold that a token is of.
func (s *Store) holderOf(key string, token int64) *hold {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range s.holds {
		if first := h.as.token(); h.key == key && h.kind == driver.Exclusive && h.at.lock.There() && first <= token && token < first+tokens {
			return h
		}
	}
	return nil
}
