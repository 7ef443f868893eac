package casstore

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/driver/keystate"
)

// batch is how many leases are renewed by one transaction: with two reads each it stays
// below the 128 operations that etcd takes.
const batch = 60

// renewal is one lease of a batch.
type renewal struct {
	driver.Renewal
	index int
	hold  *hold
	as    held
}

// Renew implements [driver.Store]. Leases of one length are renewed together: the process
// gives one sign of life for all of them, and reads their locks after it. A lock that is
// still its owner's then cannot be taken over before all others have seen the sign of
// life, and its whole lease after it.
func (s *Store) Renew(ctx context.Context, leases []driver.Renewal, done func(i int, contended bool, err error)) {
	groups := map[time.Duration][]renewal{} // by lease; zero for locks that are only read
	var longer []renewal
	for i, r := range leases {
		one := renewal{Renewal: r, index: i}
		one.hold, one.as = s.extend(r)
		switch {
		case one.hold == nil || r.TTL <= 0:
			groups[0] = append(groups[0], one)
		case whole(r.TTL) > one.as.lease():
			longer = append(longer, one)
		default:
			groups[one.as.lease()] = append(groups[one.as.lease()], one)
		}
	}
	var all sync.WaitGroup
	for lease, group := range groups {
		for len(group) > 0 {
			some := group[:upTo(group, 2*batch)]
			group = group[len(some):]
			all.Go(func() { s.confirm(ctx, lease, some, done) })
		}
	}
	for _, one := range longer {
		all.Go(func() { s.lengthen(ctx, one, done) })
	}
	all.Wait()
}

// upTo is the number of leases that one transaction with so many reads renews.
func upTo(group []renewal, reads int) int {
	for i, r := range group {
		if reads -= 2; r.as.place != "" {
			reads--
		}
		if reads < 0 {
			return i
		}
	}
	return len(group)
}

// looks are the entries that say whether an owner has its lock, and whether others wait.
func (s *Store) looks(key string, as held) []string {
	names := []string{s.names.lock(key), s.names.line(key)}
	if as.place != "" {
		names = append(names, as.place)
	}
	return names
}

// confirm gives a sign of life for locks of one lease, unless that is zero, and reads the
// locks.
func (s *Store) confirm(ctx context.Context, lease time.Duration, some []renewal, done func(int, bool, error)) {
	var txn Txn
	if lease > 0 {
		txn.Then = []Op{s.sign(lease)}
	}
	for _, r := range some {
		txn.Read = append(txn.Read, s.looks(r.Key, r.as)...)
	}
	answer, received, err := s.persist(ctx, txn)
	if n := len(some); errors.Is(err, ErrRefused) && n > 1 {
		// Perhaps because of a lock with a node that the user may not read: the others must not
		// be lost with it.
		s.confirm(ctx, lease, some[:n/2], done)
		s.confirm(ctx, lease, some[n/2:], done)
		return
	}
	if err == nil && lease > 0 {
		s.wrote(lease)
	}
	var lost []int // the indices of leases
	var why []denial
	for _, r := range some {
		if err != nil {
			done(r.index, false, err)
			continue
		}
		n := len(s.looks(r.Key, r.as))
		read := answer.Read[:n]
		answer.Read = answer.Read[n:]
		contended, err := s.judge(ctx, r, s.note(r.Key, found{}, read, received))
		if errors.Is(err, driver.ErrNotOwner) {
			lost, why = append(lost, r.index), append(why, denial{r.Key, r.Owner, err})
			continue
		}
		done(r.index, contended, err)
	}
	s.explain(ctx, why)
	for i, of := range lost {
		done(of, false, why[i].why)
	}
}

// judge says what a lock that was read means for its owner.
func (s *Store) judge(ctx context.Context, r renewal, at found) (contended bool, err error) {
	as, ours, err := s.holderIn(at, r.Owner)
	switch {
	case err != nil:
		return false, err
	case !at.lock.There():
		return false, driver.ErrDeleted
	case !ours && r.Kind.Place(): // another owner of a place is not in its way
		return false, driver.ErrDeleted
	case !ours:
		return false, driver.ErrTakenOver
	case r.hold == nil:
		return false, driver.ErrDeleted // its lease has ended, and its release is under way
	}
	s.own(r.hold, at, as)
	v, err := s.open(r.Key, at, time.Time{})
	for err == nil && !v.at.full && !v.waits() {
		t := tries{store: s, deadline: time.Now().Add(s.wait()), base: ctx}
		if at, _, err = t.list(r.Key, at); err != nil {
			return true, nil // the next renewal asks again
		}
		v, err = s.open(r.Key, at, s.now())
	}
	return err == nil && v.waits(), err
}

// lengthen writes a lock anew with a longer lease.
func (s *Store) lengthen(ctx context.Context, r renewal, done func(i int, contended bool, err error)) {
	lease := whole(r.TTL)
	for {
		s.mu.Lock()
		at, as := r.hold.at, r.hold.as
		s.mu.Unlock()
		v, err := s.open(r.Key, at, time.Time{})
		if err != nil {
			done(r.index, false, err)
			return
		}
		as.Lease = max(as.Lease, lease.Milliseconds())
		txn, err := v.become(as)
		if err != nil {
			done(r.index, false, err)
			return
		}
		if v.unsure {
			if err := s.relist(ctx, r.hold); err != nil {
				done(r.index, false, err)
				return
			}
			continue
		}
		txn.Then = append(txn.Then, s.sign(lease))
		txn.Read = s.looks(r.Key, as)
		txn.Else = txn.Read
		answer, received, err := s.persist(ctx, txn)
		if err != nil {
			done(r.index, false, err)
			return
		}
		now := s.note(r.Key, found{}, answer.Read, received)
		contended, err := s.judge(ctx, r, now)
		if as, _, _ := s.holderIn(now, r.Owner); err != nil || as.lease() >= lease && answer.Done {
			s.wrote(lease)
			done(r.index, contended, s.explained(ctx, r.Key, r.Owner, err))
			return
		}
		// Others have written it, or an earlier renewal of unknown outcome was executed.
		if err := s.relist(ctx, r.hold); err != nil {
			done(r.index, false, err)
			return
		}
	}
}

// relist notes all lockers that wait for the lock of a hold.
func (s *Store) relist(ctx context.Context, h *hold) error {
	s.mu.Lock()
	at := h.at
	s.mu.Unlock()
	t := tries{store: s, deadline: time.Now().Add(s.wait()), base: ctx}
	at, _, err := t.list(h.key, at)
	if err == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		h.at = at
	}
	return err
}

// become returns the transaction that writes a hold anew: of a holder, or of an owner that was offered the
// lock, which becomes one.
func (v *view) become(as held) (txn Txn, err error) {
	if as.place != "" {
		return Txn{If: []Condition{{as.place, as.at}}, Then: []Op{{Name: as.place, Value: as.text()}, v.takes()}}, nil
	}
	lock, holds := v.names.lock(v.key), slices.Clone(v.holds)
	if i := slices.IndexFunc(holds, func(h held) bool { return h.Owner == as.Owner }); i >= 0 {
		holds[i] = as
		return Txn{If: []Condition{{lock, v.at.lock.Revision}}, Then: []Op{{Name: lock, Value: v.value(holds, v.gone, v.spread)}}}, nil
	}
	v.own = lockerOf(as.Owner)
	if _, err := v.rec.Renew(driver.Renewal{Key: v.key, Owner: as.Owner, TTL: as.lease()}, v.now); err != nil {
		return txn, err
	}
	return v.write(keystate.Notices{}, as, false), nil
}

// persist sends a transaction that changes nothing when it is executed again, until ctx
// ends. So that there is time for two, neither waits for more than half of it.
func (s *Store) persist(ctx context.Context, txn Txn) (Answer, time.Time, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.done, cancel)()
	t := tries{store: s, deadline: time.Now().Add(2 * s.wait()), base: ctx}
	if end, ok := ctx.Deadline(); ok {
		t.deadline = end
	}
	t.most = time.Until(t.deadline) / 2
	for {
		if answer, received, again, err := t.send(txn); !again {
			return answer, received, err
		}
	}
}
