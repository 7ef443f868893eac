package lock

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/clock"
)

// machine plays everything around one lock: callers, the store's answers in any
// order, its calls, and time. A choice is a number below n.
type machine struct {
	t      *testing.T
	choose func(n int) int
	now    clock.Instant
	ahead  time.Duration
	table  *Table
	l      *lock

	terms  []*Terms
	all    []*player
	tries  []flight       // on their way
	minted int64          // the highest token of the store
	token  int64          // the highest that a holder got
	had    map[int64]bool // tokens of permits that were given out

	releases []underway // in the order of sending
	renewal  *ownership // on its way

	owners  map[string]bool // owners that the store may hold the lock for
	orphans map[string]bool
	closed  bool
}

// flight is a try on its way.
type flight struct {
	try *try
	p   *player // that sent it; nil if it has left, or is about to leave
}

// underway is a release on its way.
type underway struct {
	own    *ownership
	listed bool
	sent   clock.Instant
}

// player is a caller.
type player struct {
	Waiter
	deadline clock.Instant
	asleep   bool
	until    clock.Instant // of its sleep
	done     bool          // Acquire has returned
	leaving  bool          // it had no answer in time, and has not told the lock yet
	failed   bool          // and was woken for that
	has      bool          // the lock
	lost     bool          // and was notified of the loss
}

func (*player) Lost(*Waiter, Reason, error, error)          {}
func (*player) Renewed(*Waiter, error, time.Duration)       {}
func (*player) Wanted(*Waiter)                              {}
func (*player) Superseded(*Waiter)                          {}
func (*player) Over(error)                                  {}
func (m *machine) player(w *Waiter) *player                 { return w.Holder.(*player) }
func (m *machine) failf(format string, args ...any)         { m.t.Helper(); m.t.Fatalf(format, args...) }
func (m *machine) pick(of []*player) (p *player, none bool) { return pick(m, of) }

func pick(m *machine, of []*player) (*player, bool) {
	if len(of) == 0 {
		return nil, true
	}
	return of[m.choose(len(of))], false
}

var terms = []*Terms{
	{Lease: 3 * time.Second, Wait: -1},
	{Lease: 3 * time.Second, Wait: -1},
	{Lease: 3 * time.Second, Wait: time.Second},
	{Lease: 3 * time.Second, Wait: time.Second, MaxHold: 2 * time.Second},
	{Lease: 3 * time.Second, Wait: 0},
	{Lease: 2 * time.Second, Fixed: true, Wait: -1},
	{Lease: 3 * time.Second, Wait: -1, MaxWaiters: 3},
}

// permitTerms are the terms of callers that ask for permits at the same time.
var permitTerms = []*Terms{
	{Kind: driver.Permit, AtMost: 8, Lease: 3 * time.Second, Wait: -1},
	{Kind: driver.Permit, AtMost: 8, Lease: 3 * time.Second, Wait: time.Second},
	{Kind: driver.Permit, AtMost: 8, Lease: 3 * time.Second, Wait: 0},
	{Kind: driver.Permit, AtMost: 4, Lease: 3 * time.Second, Wait: 0},
	{Kind: driver.Permit, AtMost: 8, Lease: 3 * time.Second, Wait: -1, MaxWaiters: 2},
	{Kind: driver.Permit, AtMost: 8, Lease: 2 * time.Second, Fixed: true, Wait: -1, MaxWaiters: 1},
	{Kind: driver.Shared, Lease: 3 * time.Second, Wait: -1, MaxWaiters: 2},
	{Lease: 3 * time.Second, Wait: -1, MaxWaiters: 2},
}

// placeTerms are the terms of callers that can hold the lock together with others.
var placeTerms = []*Terms{
	{Kind: driver.Shared, Lease: 3 * time.Second, Wait: -1},
	{Kind: driver.Shared, Lease: 3 * time.Second, Wait: -1, MaxHold: 2 * time.Second},
	{Kind: driver.Shared, Lease: 3 * time.Second, Wait: 0},
	{Kind: driver.Shared, Lease: 2 * time.Second, Fixed: true, Wait: time.Second},
	{Kind: driver.Permit, AtMost: 2, Lease: 3 * time.Second, Wait: -1},
	{Kind: driver.Permit, AtMost: 2, Lease: 3 * time.Second, Wait: -1, MaxHold: 2 * time.Second},
	{Kind: driver.Permit, AtMost: 2, Lease: 3 * time.Second, Wait: 0},
	{Kind: driver.Permit, AtMost: 3, Lease: 3 * time.Second, Wait: time.Second},
	{Lease: 3 * time.Second, Wait: time.Second},
}

func newMachine(t *testing.T, terms []*Terms, choose func(int) int) *machine {
	m := &machine{
		t: t, choose: choose, now: 1, table: NewTable(nil, 20*time.Millisecond, 5), terms: terms, had: map[int64]bool{},
		owners: map[string]bool{}, orphans: map[string]bool{},
	}
	m.l = &lock{shard: &m.table.keys.shards[0], key: "k"}
	return m
}

// apply carries effects out, as the Table does.
func (m *machine) apply(fx *effects) {
	m.t.Helper()
	if w := fx.wakes.handed; w != nil {
		m.player(w).asleep = false
		switch {
		case w.Terms.Kind == driver.Exclusive && w.token <= m.token:
			m.failf("token %d after %d", w.token, m.token)
		case w.Terms.Kind == driver.Permit && (m.had[w.token] || w.token > m.minted):
			m.failf("token %d twice, or not minted", w.token)
		}
		m.had[w.token] = w.Terms.Kind == driver.Permit
		m.token = max(m.token, w.token)
	}
	for _, w := range fx.wakes.joined {
		m.player(w).asleep = false
		if w.own != fx.wakes.handed.own || w.token != fx.wakes.handed.token {
			m.failf("two that were let in together do not share a hold")
		}
	}
	if fx.wakes.look == nil {
		fx.wakes.look = m.l.nextToAsk()
	}
	for _, w := range []*Waiter{fx.wakes.look, fx.wakes.next} {
		if w != nil {
			m.player(w).asleep = false
		}
	}
	for w := fx.wakes.failed; w != nil; {
		next := w.next
		w.next = nil
		p := m.player(w)
		if p.failed || w.state != failed {
			m.failf("a waiter fails twice, or in state %d", w.state)
		}
		p.asleep, p.failed = false, true
		w = next
	}
	for x := fx.calls.loss; x != nil; x = x.next {
		if x.ended {
			m.player(x.holder).lost = true
		}
	}
	if fx.sends.orphan != nil {
		m.orphans[fx.sends.orphan.owner] = true
	}
	if fx.sends.release != nil {
		m.begin(fx.sends.release, false)
	}
	if own := fx.cancel; own != nil && !m.isReleasing(own) && (own.lease.fixed || own.stopped) {
		delete(m.owners, own.owner()) // its holder relies on it to its end, by the store's expiry
	}
	m.check()
}

func (m *machine) begin(own *ownership, listed bool) {
	if m.isReleasing(own) {
		m.failf("two releases of one ownership")
	}
	m.releases = append(m.releases, underway{own, listed, m.now})
}

// exclusive counts the releases of the lock for one.
func (m *machine) exclusive(of []underway) (n int) {
	for _, r := range of {
		if r.own.kind == driver.Exclusive {
			n++
		}
	}
	return n
}

func (m *machine) isReleasing(own *ownership) bool {
	return slices.ContainsFunc(m.releases, func(r underway) bool { return r.own == own })
}

// mine lists the holds of the process.
func (m *machine) mine() []*ownership {
	all := slices.Clone(m.l.places.held())
	if m.l.phase == held {
		all = append(all, m.l.own)
	}
	return all
}

// check looks for what must hold between two events.
func (m *machine) check() {
	m.t.Helper()
	l, n, alone, silent := m.l, 0, 0, 0
	for w := l.waiters.first; w != nil; w = w.next {
		if w.state != waiting || w.lock != l || w.next == nil && l.waiters.last() != w || w.next != nil && w.next.prev != w {
			m.failf("the queue is broken")
		}
		n++
		if w.Terms.Kind == driver.Exclusive {
			alone++
		}
		if w.marks&asking == 0 {
			silent++
		}
	}
	m.checkTries(silent)
	switch {
	case n != int(l.waiters.n) || alone != int(l.waiters.alone):
		m.failf("%d wait, %d alone; %d and %d are counted", n, alone, l.waiters.n, l.waiters.alone)
	case (l.phase == held || l.phase == releasing) != (l.own != nil):
		m.failf("phase %d with ownership %v", l.phase, l.own)
	case l.asking() > 0 && l.phase != acquiring:
		m.failf("a try is on its way in phase %d", l.phase)
	case l.phase == idle && n > 0:
		m.failf("idle with %d waiters", n)
	case l.phase == acquiring && n == 0 && l.asking() == 0:
		m.failf("acquiring for no caller")
	case (l.phase == releasing) != (l.own != nil && m.isReleasing(l.own)):
		m.failf("phase %d with releases %v", l.phase, m.releases)
	case l.places != nil && l.places.releases != len(m.releases)-m.exclusive(m.releases):
		m.failf("%d releases of places are counted, of %v", l.places.releases, m.releases)
	case l.places != nil && len(l.places.all) == 0 && l.places.releases == 0:
		m.failf("places of which there are none")
	}
	holders := map[*Waiter]*ownership{}
	for _, own := range m.mine() {
		if own.kind != driver.Shared && own.holder != nil && own.holder.next != nil {
			m.failf("two holders of what is for one")
		}
		if own.kind.Place() && own.holder == nil {
			m.failf("a place without a holder")
		}
		if own.kind == driver.Exclusive && own.tokens.room > 0 && own.tokens.last > own.tokens.base+own.tokens.room {
			m.failf("token %d is given out, and there was room for %d after %d", own.tokens.last, own.tokens.room, own.tokens.base)
		}
		for w := own.holder; w != nil; w = w.next {
			holders[w] = own
		}
	}
	for _, p := range m.all {
		if own := holders[&p.Waiter]; p.state == granted && (own == nil || own != p.own || own.over) {
			m.failf("a caller holds the lock, and is not its holder")
		}
		if p.state != granted && holders[&p.Waiter] != nil {
			m.failf("a caller in state %d is a holder", p.state)
		}
	}
	// No wake-up is missing: a waiter that sleeps has nothing to do before its
	// alarm, or waits for the answer to a release of this process, which wakes it.
	if w := l.waiters.first; w != nil && l.phase == acquiring && l.asking() == 0 && !l.awaitsRelease(w) {
		p, late := m.player(w), l.acq == nil || w.marks&refused != 0
		if p.asleep && (p.until == 0 || p.until > m.now && (late || p.until > l.acq.next.tryAt)) {
			m.failf("the first waiter sleeps until %d, and could try at %v", p.until, l.acq)
		}
	}
	// Each owner that the store may hold the lock for is ours, on its way back, or the
	// reaper's.
	for owner := range m.owners {
		is := func(own *ownership) bool { return own.owner() == owner }
		own := slices.ContainsFunc(m.mine(), is) ||
			slices.ContainsFunc(m.releases, func(r underway) bool { return is(r.own) })
		asked := slices.ContainsFunc(m.tries, func(f flight) bool { return f.try.request.Owner == owner })
		if !own && !asked && !m.orphans[owner] {
			m.failf("nobody sees to %s", owner)
		}
	}
}

// checkTries looks at the tries on their way, and at the waiters that might send more;
// silent is how many have none.
func (m *machine) checkTries(silent int) {
	m.t.Helper()
	l, marked, owners := m.l, 0, map[string]bool{}
	for _, p := range m.all {
		if p.marks&asking != 0 {
			marked++
		}
	}
	for _, f := range m.tries {
		owners[f.try.request.Owner] = true
		if f.try.request.Kind != driver.Permit && len(m.tries) > 1 {
			m.failf("a try of kind %d is on its way together with others", f.try.request.Kind)
		}
	}
	strays := 0
	if l.acq != nil {
		strays = int(l.acq.tries.strays)
	}
	switch w := l.nextToAsk(); {
	case len(m.tries) != int(l.asking()) || marked != int(l.asking())-strays || l.asking() > mostTries:
		m.failf("%d tries, %d of waiters; %d and %d are counted", len(m.tries), marked, l.asking(), int(l.asking())-strays)
	case len(owners) != len(m.tries):
		m.failf("tries of one owner are on their way at the same time")
	case silent > 0 != (l.firstSilent() != nil) && strays >= 0:
		m.failf("%d waiters do not ask, the first is %v", silent, l.firstSilent())
	case w != nil && m.player(w).asleep:
		m.failf("a waiter sleeps that may ask now")
	}
}

// run carries out the next action of a waiter, as Table.wait does.
func (m *machine) run(p *player) {
	var fx effects
	s := m.l.look(&p.Waiter, m.now, p.deadline, &fx)
	switch s.action {
	case sleep:
		p.asleep, p.until = true, s.until
	case finish:
		p.done, p.has = true, s.err == nil
	case leave:
		m.leave(p, s.err)
	case ask:
		m.tries = append(m.tries, flight{s.try, p})
		m.owners[s.try.request.Owner] = true
	}
	if fx.asks != (s.action == ask) {
		m.failf("a try is counted %v for the action %d", fx.asks, s.action)
	}
	m.apply(&fx)
}

// leave makes a waiter give up.
func (m *machine) leave(p *player, err error) {
	var fx effects
	hasIt, _ := m.l.abandon(&p.Waiter, err, &fx)
	p.done, p.leaving = true, false
	m.apply(&fx)
	if hasIt {
		m.giveBack(p)
	}
}

// giveBack releases a hold, as Table.Release does.
func (m *machine) giveBack(p *player) {
	var q Parting
	p.has = false
	var fx effects
	p.release(m.now, m.ahead, &q, &fx)
	if q.unsent != nil {
		m.begin(q.unsent, q.waiter != "")
	}
	m.apply(&fx)
}

// join is a caller that comes.
func (m *machine) join() {
	p := &player{}
	p.Terms, p.Holder = m.terms[m.choose(len(m.terms))], p
	if w := p.Terms.Wait; w > 0 {
		p.deadline = m.now.Add(w)
	} else if w == 0 {
		p.deadline = m.now.Add(notReadyWait)
	}
	var fx effects
	p.lock = m.l
	if err := m.l.join(&p.Waiter, m.now, m.ahead, &fx); err != nil {
		if m.closed != errors.Is(err, ErrClosed) {
			m.failf("%v", err)
		}
		if own := m.l.own; own != nil && errors.Is(err, ErrHeld) && p.Terms.Wait == 0 && m.now >= own.lease.deadline() {
			m.failf("refused for a lease that is over, in phase %d", m.l.phase)
		}
		if p.Terms.Wait == 0 && errors.Is(err, ErrHeld) && m.l.phase == releasing && m.l.waiters.first == nil {
			m.failf("refused before the release is answered")
		}
		p.done, p.state = true, gone
	} else {
		m.all = append(m.all, p)
	}
	m.apply(&fx)
}

// answer is the outcome of a try that is on its way.
func (m *machine) answer(i int) {
	f := m.tries[i]
	m.tries = slices.Delete(m.tries, i, i+1)
	req := f.try.request
	var a answer
	a.Sent = m.table.Clock.Time(f.try.sent)
	how := m.choose(6)
	if how <= 1 && m.keptOut(req) {
		how = 2
	}
	switch how {
	case 0, 1:
		a.Granted, a.Token = true, max(m.minted, m.token)+1+int64(m.choose(2))
		m.minted = a.Token
		if req.Kind == driver.Permit {
			m.minted += driver.Tokens - 1
		}
		a.Ambiguous = m.choose(4) == 0
		a.Room = int64(m.choose(3))
	case 2:
		a.Holder, a.TTL, a.Listed = "other:1", time.Duration(m.choose(3000))*time.Millisecond, m.choose(2) == 0
		a.orphaned = m.choose(8) == 0
		a.Full = req.Kind == driver.Permit && m.choose(2) == 0
		delete(m.owners, req.Owner)
	case 3:
		a.err = driver.ErrNotReady
		delete(m.owners, req.Owner)
	case 4:
		a.err, a.Ambiguous = driver.ErrUnavailable, true
	case 5:
		a.err = fmt.Errorf("%w: refused", driver.ErrUnavailable)
		delete(m.owners, req.Owner)
	}
	var w *Waiter
	if f.p != nil {
		w = &f.p.Waiter
	}
	var fx effects
	m.l.answered(m.now, f.try, w, a, &fx)
	if w == nil && fx.wakes.failed != nil && a.err != nil {
		m.failf("the outcome of a try whose caller has left fails another caller")
	}
	m.apply(&fx)
	if how == 2 {
		m.checkRefused()
	}
	if f.p != nil && !f.p.done {
		m.run(f.p)
	}
}

// checkRefused looks who waits after a refusal that answers all tries: no caller that does
// not wait, and none after more others than it allows.
func (m *machine) checkRefused() {
	acq, before := m.l.acq, 0
	if m.l.asking() > 0 || acq == nil || acq.outage.why != nil {
		return
	}
	for w := m.l.waiters.first; w != nil; w = w.next {
		switch {
		case w.marks&asking != 0: // it is about to leave
			continue
		case w.marks&refused != 0: // it leaves, or was refused by a place that is given back
		case w.Terms.Wait == 0 && before > 0 && !acq.refusal.blind:
			m.failf("a caller that does not wait stands behind %d that were refused", before)
		case w.Terms.MaxWaiters > 0 && before >= w.Terms.MaxWaiters && w != m.l.waiters.first:
			m.failf("%d wait before a caller whose MaxWaiters is %d", before, w.Terms.MaxWaiters)
		}
		before++
	}
}

// keptOut reports whether what this process holds keeps the store from granting a
// request.
func (m *machine) keptOut(req driver.AcquireRequest) bool {
	places := 0
	for _, r := range m.releases {
		if m.now < r.own.lease.deadline() {
			places++
		}
	}
	for _, own := range m.mine() {
		if m.now < own.lease.deadline() {
			places++
		}
	}
	return req.Kind == driver.Exclusive && places > 0 || req.Kind == driver.Permit && places >= req.AtMost
}

// released is the outcome of a release that is on its way.
func (m *machine) released(i int, err error) {
	r := m.releases[i]
	m.releases = slices.Delete(m.releases, i, i+1)
	own := r.own
	if err == nil || errors.Is(err, driver.ErrNotOwner) {
		delete(m.owners, own.owner())
	}
	var fx effects
	waiting := driver.Waiting{}
	if err == nil && m.choose(2) == 0 {
		waiting = driver.Waiting{Others: 2}
	}
	m.l.released(own, r.sent, m.now, 0, r.listed, waiting, err, &fx)
	m.apply(&fx)
}

// step is one event.
func (m *machine) step() {
	var awake, asleep, holding []*player
	for _, p := range m.all {
		switch {
		case p.has:
			holding = append(holding, p)
		case p.done || p.leaving || m.sent(p):
		case p.asleep:
			asleep = append(asleep, p)
		default:
			awake = append(awake, p)
		}
	}
	switch m.choose(12) {
	case 0, 1:
		if len(m.all) < 100 {
			m.join()
		}
	case 2, 3, 4:
		if p, none := m.pick(awake); !none {
			m.run(p)
		}
	case 5:
		for _, p := range asleep { // alarms
			if p.until != 0 && p.until <= m.now {
				p.asleep = false
			}
		}
	case 6:
		m.now = m.now.Add(time.Duration(m.choose(200)*m.choose(10)) * time.Millisecond)
		if m.choose(50) == 0 {
			m.ahead += time.Second // the machine was suspended
		}
	case 7:
		if n := len(m.tries); n > 0 {
			m.answer(m.choose(n))
		}
	case 8:
		if n := len(m.releases); n > 0 {
			m.released(m.choose(n), []error{nil, driver.ErrDeleted, driver.ErrUnavailable}[m.choose(3)])
		}
	case 9:
		if p, none := m.pick(holding); !none {
			m.giveBack(p)
		}
	case 10:
		m.background()
	case 11:
		switch p, none := m.pick(append(awake, asleep...)); {
		case none:
		case m.choose(3) == 0:
			m.leave(p, errors.New("the context has ended"))
		}
		if n := len(m.tries); n > 0 && m.choose(10) == 0 {
			if f := &m.tries[m.choose(n)]; f.p != nil {
				f.p.leaving, f.p = true, nil // the try goes on without it
			}
		}
		for _, p := range m.all {
			if p.leaving && m.choose(2) == 0 {
				m.leave(p, errors.New("the context has ended"))
			}
		}
	}
}

// sent reports whether a try of a player is on its way.
func (m *machine) sent(p *player) bool {
	return slices.ContainsFunc(m.tries, func(f flight) bool { return f.p == p })
}

// background is an event of the store or of the watchdog.
func (m *machine) background() {
	var fx effects
	switch m.choose(4) {
	case 0:
		c := driver.Call{
			What: []driver.News{driver.Unsure, driver.Turn, driver.Turn, driver.Wanted, driver.Displaced}[m.choose(5)],
			In:   time.Duration(m.choose(3)*5) * time.Millisecond, Others: m.choose(2) == 0,
		}
		m.l.called(m.now, m.ahead, c, nil, &fx)
	case 1:
		if all := m.mine(); len(all) > 0 {
			if own := all[m.choose(len(all))]; own.due(m.now, &fx) {
				m.renewal = own
			}
		}
	case 2:
		if r := m.renewal; r != nil {
			m.renewal = nil
			err := []error{nil, nil, driver.ErrUnavailable, driver.ErrTakenOver}[m.choose(4)]
			r.renewed(renewal{
				sent: m.now, ahead: m.ahead, scheduled: true, extended: true, contended: m.choose(2) == 0, err: err,
			}, m.now, m.ahead, &fx)
			if errors.Is(err, driver.ErrNotOwner) {
				delete(m.owners, r.owner())
			}
		}
	case 3:
		if m.choose(40) == 0 {
			m.closed = true
			m.table.life.closed.Store(true)
			m.l.close(&fx)
		}
	}
	m.apply(&fx)
}

func TestAnyOrderOfEventsKeepsTheLockWhole(t *testing.T) { anyOrder(t, terms) }

func TestAnyOrderOfEventsKeepsPlacesWhole(t *testing.T) { anyOrder(t, placeTerms) }

func TestAnyOrderOfEventsKeepsPermitsWhole(t *testing.T) { anyOrder(t, permitTerms) }

func anyOrder(t *testing.T, terms []*Terms) {
	for seed := range uint64(seeds) {
		r := rand.New(rand.NewPCG(seed, 7))
		m := newMachine(t, terms, r.IntN)
		for range 400 {
			m.step()
		}
		m.finish()
	}
}

func FuzzEvents(f *testing.F) {
	f.Add([]byte{0, 0, 2, 0, 7, 0, 9})
	f.Fuzz(func(t *testing.T, choices []byte) {
		m := newMachine(t, slices.Concat(terms, placeTerms, permitTerms), func(n int) int {
			if len(choices) == 0 {
				return 0
			}
			c := int(choices[0])
			choices = choices[1:]
			return c % n
		})
		for len(choices) > 0 {
			m.step()
		}
	})
}

// finish closes the table, answers the requests on their way, and looks whether
// anything is left.
func (m *machine) finish() {
	m.closed = true
	m.table.life.closed.Store(true)
	var fx effects
	m.l.close(&fx)
	m.apply(&fx)
	for range 1000 {
		switch {
		case len(m.tries) > 0:
			m.answer(0)
		case len(m.releases) > 0:
			m.released(0, nil)
		default:
			busy := false
			for _, p := range m.all {
				switch {
				case p.has:
					m.giveBack(p)
				case p.leaving:
					m.leave(p, ErrClosed)
				case !p.done && p.asleep:
					m.failf("a waiter sleeps after the close")
				case !p.done:
					m.run(p)
				default:
					continue
				}
				busy = true
				break
			}
			if !busy {
				if m.l.phase != idle || m.l.places != nil {
					m.failf("phase %d and places %v at the end", m.l.phase, m.l.places)
				}
				return
			}
		}
	}
	m.failf("it does not end")
}

// A try that may have been refused because of a place of the same process is repeated
// when that place was given back, though a caller that waits has planned to ask later.
func TestATryThatAPlaceOfItsProcessMayHaveRefusedAsksAgainAtOnce(t *testing.T) {
	m := newMachine(t, nil, nil)
	l := m.l
	l.places = &places{releases: 1}
	var tries []*try
	all := []*Waiter{
		{Terms: &Terms{Kind: driver.Permit, AtMost: 3, Lease: time.Second}, lock: l},
		{Terms: &Terms{Kind: driver.Permit, AtMost: 3, Lease: time.Second, Wait: -1}, lock: l},
	}
	for _, w := range all {
		if err := l.join(w, m.now, 0, &effects{}); err != nil {
			t.Fatal(err)
		}
		tries = append(tries, l.look(w, m.now, 0, &effects{}).try)
	}
	for i, w := range all {
		refusal := answer{Reply: driver.Reply{Full: true, Listed: i == 1, TTL: time.Second}}
		l.answered(m.now, tries[i], w, refusal, &effects{})
	}
	deadline := m.now.Add(notReadyWait)
	if s := l.look(all[0], m.now, deadline, &effects{}); s.action != sleep || s.until != deadline {
		t.Errorf("before the release is answered: %+v", s)
	}
	l.places = nil
	if s := l.look(all[0], m.now, deadline, &effects{}); s.action != ask {
		t.Errorf("after it: %+v", s)
	}
}

// A caller of the process has taken the lock over while a try for a permit was on its way. The waiter
// that may ask next was woken after each event, and by that event again.
func TestNoWaiterMayAskForAPermitWhileTheProcessHasTheLock(t *testing.T) {
	table := NewTable(nil, time.Second, 1)
	l := &lock{shard: &table.keys.shards[0], key: "k", phase: acquiring, acq: &acquisition{tries: tries{n: 1, kind: driver.Permit}}}
	for range 2 {
		l.waiters.push(&Waiter{Terms: &Terms{Kind: driver.Permit, AtMost: 8, Wait: -1}})
	}
	l.waiters.first.marks |= asking
	if w := l.nextToAsk(); w != l.waiters.last() {
		t.Fatalf("%v may ask; want the second waiter", w)
	}
	if l.phase = held; l.nextToAsk() != nil {
		t.Error("a waiter may ask while the process has the lock")
	}
}

// While a caller held the lock that it had taken over, tries of callers before it counted, and each
// answer had to be told from the answers to tries of a lock that is acquired.
func TestATryThatATakeOverHasPassedIsForNoCaller(t *testing.T) {
	for name, c := range map[string]struct {
		a        answer
		wait     time.Duration
		orphaned bool
		want     action
	}{
		"granted before":       {answer{Reply: driver.Reply{Granted: true, Token: 1}}, -1, true, sleep},
		"granted later":        {answer{Reply: driver.Reply{Granted: true, Token: 9}}, -1, true, sleep},
		"refused":              {answer{Reply: driver.Reply{Holder: "other:1", TTL: time.Second}}, -1, false, sleep},
		"refused, no wait":     {answer{Reply: driver.Reply{Holder: "other:1", TTL: time.Second}}, 0, false, leave},
		"unknown":              {answer{Reply: driver.Reply{Ambiguous: true}, err: driver.ErrUnavailable}, -1, true, sleep},
		"not ready, and known": {answer{err: driver.ErrNotReady}, -1, false, sleep},
	} {
		t.Run(name, func(t *testing.T) {
			table := NewTable(nil, time.Second, 10)
			l := &lock{shard: &table.keys.shards[0], key: "k"}
			l.shard.locks["k"] = l
			now := table.Clock.Now()
			event := func(f func(fx *effects)) (fx effects) {
				f(&fx)
				if err := l.valid(); err != nil {
					t.Fatal(err)
				}
				return fx
			}
			terms := &Terms{Lease: 3 * time.Second, Wait: c.wait}
			waits, taker := &player{Waiter: Waiter{Terms: terms}}, &Waiter{Terms: &Terms{Lease: 3 * time.Second}}
			var s step
			event(func(fx *effects) {
				if err := l.join(&waits.Waiter, now, 0, fx); err != nil {
					t.Fatal(err)
				}
				s = l.look(&waits.Waiter, now, 0, fx)
			})
			own := &ownership{lock: l, seq: 77, lease: lease{length: 3 * time.Second, sent: now}, tokens: tokens{last: 5, base: 5}}
			event(func(fx *effects) {
				taker.lock = l
				if err := l.takes(own, taker, now, fx); err != nil {
					t.Fatal(err)
				}
			})
			c.a.Sent = table.Clock.Time(now)
			fx := event(func(fx *effects) { l.answered(now, s.try, &waits.Waiter, c.a, fx) })
			if fx.sends.orphan != nil != c.orphaned {
				t.Errorf("the reaper gets %v; want an owner: %v", fx.sends.orphan, c.orphaned)
			}
			if l.own != own || own.over || taker.state != granted {
				t.Errorf("the caller that took the lock over has lost it: %+v", own)
			}
			event(func(fx *effects) { s = l.look(&waits.Waiter, now, 0, fx) })
			if s.action != c.want {
				t.Errorf("the sender of the try then does %d, want %d", s.action, c.want)
			}
		})
	}
}
