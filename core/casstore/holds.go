package casstore

import (
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

// hold is an owner of this process that has a lock or may still get one. A hold ends with
// its release. Where the lock has stopped to renew it, or a transaction of unknown
// outcome may have taken it, the store releases it itself.
type hold struct {
	key, owner string
	kind       driver.Kind
	lease      time.Duration

	// Guarded by the mutex of the store:

	asking   int      // acquires that are under way
	doubtful bool     // a transaction that takes the lock may be executed later,
	doubt    Revision // as long as this is the process's void
	at       found    // the lock with this hold, as it was last known; zero: not known to be ours
	as       held
	until    time.Time // when its lease ends at the latest
	ending   bool      // its release has begun
	tried    Condition // the place that was tried last, as it was before
	timer    *time.Timer

	kept kept
}

// kept is the entry of a hold for [Store.Held].
type kept struct {
	busy  chan struct{} // has room for one: a call is under way
	at    Revision
	token int64 // of the lease that it was written for; zero: it is not known
}

// expect notes an owner before the first transaction that can make it a holder. known says
// that it is a holder.
func (s *Store) expect(key, owner string, kind driver.Kind, lease time.Duration) (h *hold, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h = s.holds[owner]; h != nil && h.key == key {
		h.asking++
		return h, h.at.lock.There()
	}
	h = s.newHold(key, owner, kind, lease)
	h.asking = 1
	return h, false
}

// newHold notes an owner of this process. Called with the mutex held.
func (s *Store) newHold(key, owner string, kind driver.Kind, lease time.Duration) *hold {
	h := &hold{key: key, owner: owner, kind: kind, lease: lease, until: s.now().Add(lease), kept: kept{busy: make(chan struct{}, 1)}}
	h.timer = time.AfterFunc(lease, func() { s.background(func() { s.lapse(h) }) })
	s.holds[owner] = h
	return h
}

// own notes that a hold has its lock.
func (s *Store) own(h *hold, at found, as held) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if at.lock.Revision.Number >= h.at.lock.Revision.Number { // else the answer came late
		h.at, h.as = at, as
	}
	h.lease = max(h.lease, as.lease())
}

// doubt notes that a transaction of unknown outcome may take the lock as long as the
// process's void is as it was.
func (s *Store) doubt(h *hold, void Revision) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.doubtful = true; void == s.void { // else it can only have been executed already
		h.doubt = void
	}
}

// unreleased returns the process's void for a transaction that takes the lock, and an error
// if the release of its owner has begun.
func (s *Store) unreleased(h *hold) (void Revision, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.ending {
		return void, errReleased
	}
	return s.void, nil
}

// sawVoid notes the process's void. compared is the void that the transaction was sent with:
// an answer that comes late may show an older void.
func (s *Store) sawVoid(compared, now Revision) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.Number > s.void.Number || compared == s.void {
		s.void = now
	}
}

// missed drops a hold that has got no lock, unless it may get it yet.
func (s *Store) missed(h *hold) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !h.doubtful && !h.ending {
		s.drop(h)
	}
}

// asked notes that an acquire has ended.
func (s *Store) asked(h *hold) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h.asking--
}

// forget drops a hold that has no lock and gets none.
func (s *Store) forget(h *hold) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop(h)
}

// drop is forget with the mutex held.
func (s *Store) drop(h *hold) {
	h.timer.Stop()
	if s.holds[h.owner] == h {
		delete(s.holds, h.owner)
	}
}

// extend is called before a renewal is sent. It returns the hold, unless there is none that
// has its lock, or its end has begun: a renewal must not be confirmed while the release is
// on its way.
func (s *Store) extend(r driver.Renewal) (h *hold, as held) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h = s.holds[r.Owner]
	if h == nil || h.ending || h.key != r.Key || !h.at.lock.There() {
		return nil, as
	}
	if end := s.now().Add(max(whole(r.TTL), h.lease)); r.TTL > 0 && end.After(h.until) {
		h.until = end
	}
	return h, h.as
}

// lapse ends a hold that was not renewed for its lease: the beat of the process would keep
// its lock for others.
func (s *Store) lapse(h *hold) {
	s.mu.Lock()
	if s.holds[h.owner] != h {
		s.mu.Unlock()
		return
	}
	left := h.until.Sub(s.now())
	if h.asking > 0 {
		// An owner that gets no lock asks again. A release that is under way then would give up
		// the lock of the new request.
		left = max(left, lastPause)
	}
	if left > 0 && !h.ending {
		h.timer.Reset(left)
		s.mu.Unlock()
		return
	}
	h.ending = true
	s.mu.Unlock()
	_, err := s.release(driver.ReleaseRequest{Key: h.key, Owner: h.owner, Kind: h.kind, Deadline: time.Now().Add(patience * s.wait())}, true)
	if isOutcome(err) {
		return
	}
	s.Warn("a lock whose lease has ended could not be released, others wait for it", err)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.holds[h.owner] == h {
		h.timer.Reset(min(max(h.lease/3, lastPause), 10*time.Second))
	}
}
