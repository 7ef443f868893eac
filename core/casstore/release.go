package casstore

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

// Release implements [driver.Store].
func (s *Store) Release(_ context.Context, ask driver.ReleaseRequest) (waiting driver.Waiters, err error) {
	type outcome struct {
		waiting driver.Waiters
		err     error
	}
	done := make(chan outcome, 1)
	if !s.background(func() {
		waiting, err := s.release(ask)
		done <- outcome{waiting, err}
	}) {
		return "", errClosed
	}
	o := <-done
	return o.waiting, o.err
}

// isOutcome reports whether a release has an outcome: the owner holds the lock no more.
func isOutcome(err error) bool { return err == nil || errors.Is(err, driver.ErrNotOwner) }

// parting is a release on its way.
type parting struct {
	*Store
	tries
	ask  driver.ReleaseRequest
	hold *hold // nil: the store does not know the owner

	at   Revision // of the lock; zero: it is not known to be ours
	as   holding
	void bool  // a transaction that takes the lock may come yet: it must fail
	why  error // the server refuses what writes: nothing is written, only deleted
}

// release gives a lock up. No request that was sent before gives the owner the lock later:
// a transaction that may still take it is made to fail.
func (s *Store) release(ask driver.ReleaseRequest) (waiting driver.Waiters, err error) {
	p := &parting{Store: s, tries: tries{store: s, deadline: ask.Deadline}, ask: ask}
	if ask.Deadline.IsZero() {
		p.deadline = time.Now().Add(patience * s.wait())
	}
	s.mu.Lock()
	if h := s.holds[ask.Owner]; h != nil && h.key == ask.Key {
		h.ending = true
		p.hold, p.at, p.as = h, h.at, h.as
		// Where the void has changed since, a transaction from before fails anyway.
		p.void = h.asking > 0 || h.doubtful && h.doubt == s.void
	}
	s.mu.Unlock()
	again := true
	for again {
		if p.at != (Revision{}) {
			waiting, again, err = p.giveUp()
		} else {
			again, err = p.forbid()
		}
	}
	switch {
	case isOutcome(err) && p.hold != nil:
		s.forget(p.hold)
	case p.hold != nil:
		s.mu.Lock()
		p.hold.timer.Reset(max(p.hold.until.Sub(s.now()), lastPause)) // lapse tries again
		s.mu.Unlock()
	}
	if errors.Is(err, driver.ErrNotOwner) && p.unknown {
		err = nil
	}
	return waiting, err
}

// giveUp deletes the lock that is ours.
func (p *parting) giveUp() (waiting driver.Waiters, again bool, err error) {
	name, queue := p.names.lock(p.ask.Key), p.names.queue(p.ask.Key)
	txn := Txn{
		If: []Condition{{name, p.at}}, Then: append(p.voiding(), Op{Name: name, Delete: true}),
		List: []Range{{Prefix: queue}}, Else: []string{name},
	}
	txn.Then = append(txn.Then, p.as.ends(p.names, p.ask.Key)...)
	own := string(p.ask.Waiter.Exclusive())
	if own != "" && p.why == nil {
		txn.Then = append(txn.Then, Op{Name: p.names.waiter(p.ask.Key, own), Value: p.process})
		p.enters(p.ask.Key, own)
	}
	answer, _, again, err := p.send(txn)
	if err != nil {
		return "", p.barely(err) || again, err
	}
	if answer.Done {
		p.voided(answer)
		if n := len(answer.Written); txn.Then[n-1].Name == p.names.waiter(p.ask.Key, own) {
			p.entered(p.ask.Key, own, answer.Written[n-1])
		}
		p.tidy(queue, answer.Lists[0])
		if line := p.as.line(queue, answer.Lists[0]); len(line) > 1 || len(line) == 1 && line[0] != own {
			waiting = driver.Waiters(strings.Join(line, ","))
		}
		if p.void {
			return waiting, false, p.why // the lock is free, but a late transaction could take it
		}
		return waiting, false, nil
	}
	again, err = p.look(answer.Read[0])
	return "", again, err
}

// barely has the release go on without its writes: a server that has no space still
// deletes. It reports false if the release has written nothing before.
func (p *parting) barely(err error) bool {
	refused, settled := errors.Is(err, ErrRefused), errors.Is(err, ErrSettled)
	p.unknown = p.unknown || settled
	if p.why != nil || !refused && !settled {
		return false
	}
	p.why = err
	return true
}

// forbid sees to it that an owner gets no lock later, and looks whether it has one.
func (p *parting) forbid() (again bool, err error) {
	answer, _, again, err := p.send(Txn{Then: p.voiding(), Read: []string{p.names.lock(p.ask.Key)}})
	if err != nil {
		return p.barely(err) || again, err
	}
	p.voided(answer)
	return p.look(answer.Read[0])
}

// look notes the present state of the lock. If the owner does not have it, and cannot get it,
// that is the outcome.
func (p *parting) look(lock Entry) (again bool, err error) {
	p.at = Revision{}
	if lock.There() {
		if other, err := holder(lock); err == nil && other.owner == p.ask.Owner {
			p.at, p.as = lock.Revision, other // a transaction of unknown outcome has written it
			return true, nil
		}
	}
	switch {
	case p.void:
		return p.why == nil, p.why
	case lock.There():
		return false, driver.ErrTakenOver
	}
	return false, driver.ErrDeleted
}

// voiding is the operation that makes transactions of this process fail that take a lock, if
// that is needed. Other acquires of the process send theirs again.
func (p *parting) voiding() []Op {
	if !p.void || p.why != nil {
		return nil
	}
	return []Op{{Name: p.names.void(p.process), Value: p.process}}
}

// voided notes that the first operation of a transaction was [parting.voiding].
func (p *parting) voided(answer Answer) {
	if p.void && p.why == nil {
		p.sawVoid(Revision{}, answer.Written[0])
		p.void = false
	}
}

// tidy deletes, in the background, the names of lockers that have left the list of a lock
// before it was granted.
func (p *parting) tidy(queue string, entries []Entry) {
	var txn Txn
	for _, e := range entries {
		if len(txn.If) < batch && e.Revision.Number < p.as.granted && !p.waits(p.ask.Key, nameIn(queue, e)) {
			txn.If = append(txn.If, Condition{e.Name, e.Revision})
			txn.Then = append(txn.Then, Op{Name: e.Name, Delete: true})
		}
	}
	if len(txn.If) > 0 {
		p.background(func() {
			t := tries{store: p.Store, deadline: time.Now().Add(p.wait())}
			_, _, _, _ = t.send(txn) // if a locker has come back, all of them stay until the next release
		})
	}
}
