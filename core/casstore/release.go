package casstore

import (
	"context"
	"errors"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

// Release implements [driver.Store].
func (s *Store) Release(_ context.Context, ask driver.ReleaseRequest) (found driver.Waiting, err error) {
	if !s.work.Do(func() { found, err = s.release(ask, false) }) {
		return found, errClosed
	}
	return found, err
}

// isOutcome reports whether a release has an outcome: the owner holds the lock no more.
func isOutcome(err error) bool { return err == nil || errors.Is(err, driver.ErrNotOwner) }

// parting is a release on its way.
type parting struct {
	*Store
	tries
	ask  driver.ReleaseRequest
	hold *hold // nil: the store does not know the owner

	at     found // the lock with the hold; zero: it is not known to be ours
	lapsed bool  // its lease has ended
	void   bool  // a transaction that takes the lock may come yet: it must fail
	why    error // the server refuses what writes: nothing is written, only deleted
}

// release gives a lock up. No request that was sent before gives the owner the lock later:
// a transaction that may still take it is made to fail.
func (s *Store) release(ask driver.ReleaseRequest, lapsed bool) (found driver.Waiting, err error) {
	p := &parting{Store: s, tries: tries{store: s, deadline: ask.Deadline}, ask: ask, lapsed: lapsed}
	if ask.Deadline.IsZero() {
		p.deadline = time.Now().Add(patience * s.wait())
	}
	s.mu.Lock()
	if h := s.holds[ask.Owner]; h != nil && h.key == ask.Key {
		h.ending = true
		p.hold, p.at = h, h.at
		// Where the void has changed since, a transaction from before fails anyway.
		p.void = h.asking > 0 || h.doubtful && h.doubt == s.void
	}
	s.mu.Unlock()
	again := true
	if p.sure = ask.Kind.Place(); p.sure {
		again, err = false, p.leave()
	}
	for again {
		if p.at.lock.There() {
			found, again, err = p.giveUp()
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
	switch {
	case errors.Is(err, driver.ErrNotOwner) && p.unknown:
		err = nil
	case !lapsed:
		err = s.explained(s.done, ask.Key, ask.Owner, err)
	}
	return found, err
}

// giveUp writes the lock without the hold that is ours.
func (p *parting) giveUp() (found driver.Waiting, again bool, err error) {
	v, err := p.open(p.ask.Key, p.at, p.now())
	if err != nil {
		return found, false, err
	}
	if v.own = p.ask.Waiter.ID(); v.own == "" {
		v.own = lockerOf(p.ask.Owner)
	}
	ask := p.ask
	ask.Token = 0 // tokens grow with the revisions of the server
	found, notices, err := v.rec.Release(ask, func(string) bool { return true }, v.now)
	if err != nil {
		return found, false, err
	}
	txn := v.write(notices, held{}, false)
	switch {
	case p.why == nil && v.unsure:
		again, err := p.list()
		return driver.Waiting{}, again, err
	case p.why == nil:
	case len(v.rec.Owners()) > 0: // others hold the lock as well, so it has to be written
		return found, false, p.why
	default: // the lockers that wait ask again after a time
		mine, _ := v.hold(p.ask.Owner)
		txn.Then = append([]Op{{Name: p.names.lock(p.ask.Key), Delete: true}}, mine.ends(p.names, p.ask.Key)...)
	}
	if p.why == nil {
		txn.Then = append(txn.Then, p.noting(p.ask.Key, p.ask.Owner, notices)...)
	}
	txn.Then = append(p.voiding(), txn.Then...)
	if p.ask.Waiter != "" {
		p.lists(p.ask.Key, p.ask.Waiter, true)
	}
	txn.Else = v.looksAt(txn)
	answer, received, again, err := p.send(txn)
	if err != nil {
		return driver.Waiting{}, p.barely(err) || again, err
	}
	if !answer.Done {
		if again, err = p.look(v.learn(txn, answer, received)); again && (v.theirs || v.stale(answer)) {
			again, err = p.list()
		}
		return found, again, err
	}
	p.voided(answer)
	p.noteWritten(v, txn, answer, received)
	if p.void {
		return found, false, p.why // the lock is free, but a late transaction could take it
	}
	return found, false, nil
}

// list looks at the line of the lock.
func (p *parting) list() (again bool, err error) {
	p.at, again, err = p.tries.list(p.ask.Key, p.at)
	return again, err
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
	answer, _, again, err := p.send(Txn{Then: p.voiding(), Read: []string{p.names.lock(p.ask.Key), p.names.line(p.ask.Key)}})
	if err != nil {
		return p.barely(err) || again, err
	}
	p.voided(answer)
	return p.look(found{lock: answer.Read[0], line: answer.Read[1]})
}

// look notes the present state of the lock. If the owner does not have it, and cannot get it,
// that is the outcome.
func (p *parting) look(now found) (again bool, err error) {
	p.at = found{}
	if _, ours, err := p.holderIn(now, p.ask.Owner); err == nil && ours {
		p.at = now // others have come, or a transaction of unknown outcome has written it
		return true, nil
	}
	switch {
	case p.void:
		return p.why == nil, p.why
	case now.lock.There():
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
