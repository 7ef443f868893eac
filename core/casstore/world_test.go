package casstore_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/casstore"
	"github.com/interlock-go/interlock/core/casstore/castest"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/clock"
)

const (
	processes = 3
	keys      = 2
	storm     = 3 * time.Second // for how long there are faults
	calm      = 6 * time.Second // and then none
)

// world is some processes on one server, with a network between that loses, delays and
// reorders.
type world struct {
	t      *testing.T
	server *castest.Memory
	begin  time.Time

	mu     sync.Mutex
	lots   *rand.Rand
	lease  time.Duration
	places bool // some callers share locks, or want a permit of two
	wrong  []string
	grants int
	begun  int // holds that began with an offer
	keys   map[string]*state
}

// state is the state of a key in the world: who trusts its lock, and the last token.
type state struct {
	holders map[*holder]bool
	token   int64                         // the last
	alone   int64                         // the last of an exclusive holder
	kept    map[string]casstore.Condition // of the user's transactions, by owner
}

// holder is an owner that trusts its lock.
type holder struct {
	owner string
	until time.Time
}

// kindOf is the kind of hold that an owner wants: its name ends with the first letter.
func kindOf(owner string) driver.Kind {
	return map[byte]driver.Kind{'s': driver.Shared, 'p': driver.Permit}[owner[len(owner)-1]]
}

// permits is how many permits a key has.
const permits = 2

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{
		t: t, places: seed%2 == 1, server: castest.NewMemory(), begin: time.Now(),
		lots: rand.New(rand.NewPCG(seed, 1)), keys: map[string]*state{},
	}
	w.lease = time.Duration(100+w.lots.IntN(400)) * time.Millisecond
	return w
}

// draw draws a lot.
func (w *world) draw() float64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lots.Float64()
}

func (w *world) upTo(d time.Duration) time.Duration { return time.Duration(w.draw() * float64(d)) }

func (w *world) stormy() bool { return time.Since(w.begin) < storm }

// complain notes what must not happen.
func (w *world) complain(format string, args ...any) {
	w.wrong = append(w.wrong, fmt.Sprintf("after %v: ", time.Since(w.begin))+fmt.Sprintf(format, args...))
}

// enter notes that an owner trusts its lock.
func (w *world) enter(key string, token int64, h *holder) {
	w.mu.Lock()
	defer w.mu.Unlock()
	k := w.keys[key]
	if k == nil {
		k = &state{holders: map[*holder]bool{}, kept: map[string]casstore.Condition{}}
		w.keys[key] = k
	}
	place := kindOf(h.owner).Place()
	if after := k.token; !place && token <= after || place && token <= k.alone {
		w.complain("%s: token %d of %s follows %d", key, token, h.owner, after)
	}
	if k.token = max(k.token, token); !place {
		k.alone = token
	}
	for owner, condition := range k.kept {
		if w.executes(condition) {
			w.complain("%s: a transaction of %s is executed, and %s has the lock", key, owner, h.owner)
		}
	}
	k.holders[h] = true
	w.grants++
	w.alone(key, h)
}

// executes reports whether the server executes a transaction of the user under a condition.
func (w *world) executes(condition casstore.Condition) bool {
	answer, err := w.server.Commit(context.Background(), casstore.Txn{If: []casstore.Condition{condition}})
	return err == nil && answer.Done
}

// trusted is a lease for [casstore.Store.Held].
type trusted struct {
	key   string
	token int64
}

func (t trusted) Keys() []string                { return []string{t.key} }
func (t trusted) TokenFor(string) (int64, bool) { return t.token, true }
func (trusted) Err() error                      { return nil }

// keep asks for the condition of a holder, for transactions of the user.
func (p *process) keep(key string, token int64, h *holder) {
	ctx, cancel := context.WithTimeout(context.Background(), p.lease/3)
	defer cancel()
	held, err := p.store.Held(ctx, trusted{key, token})
	if err != nil {
		return
	}
	p.world.mu.Lock()
	defer p.world.mu.Unlock()
	k := p.keys[key]
	if k.kept[h.owner] = held[0]; k.holders[h] && time.Now().Before(h.until) && !p.executes(held[0]) {
		p.complain("%s: a transaction of %s is refused, and it has the lock for %v more", key, h.owner, time.Until(h.until))
	}
}

// alone complains of others that trust the lock at this moment. Called with the mutex held.
func (w *world) alone(key string, h *holder) {
	now, kind, others := time.Now(), kindOf(h.owner), 0
	for other := range w.keys[key].holders {
		if other == h || !now.Before(other.until) || !now.Before(h.until) {
			continue
		}
		if others++; !kind.Place() || kind != kindOf(other.owner) || kind == driver.Permit && others >= permits {
			w.complain("%s: %s and %s, for %v and %v more", key, h.owner, other.owner, h.until.Sub(now), other.until.Sub(now))
		}
	}
}

// extend notes a renewal; it reports false if the lease had ended.
func (w *world) extend(key string, h *holder, until time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !time.Now().Before(h.until) {
		return false
	}
	h.until = until
	w.alone(key, h)
	return true
}

// exit notes that an owner trusts its lock no more.
func (w *world) exit(key string, h *holder) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.keys[key].holders, h)
}

// process is one process: a store, its network and its clock.
type process struct {
	*world
	name  string
	rate  float64 // of its clock
	rough float64 // how bad its network is
	store *casstore.Store

	mu      sync.Mutex
	cut     time.Time // until when it reaches nothing
	unready time.Time // until when it knows that, and sends nothing
	work    sync.WaitGroup

	style   int // see waiter
	callers map[string]*caller
	reached bool // by offers
}

func (w *world) newProcess(n int) *process {
	p := &process{world: w, name: fmt.Sprint("p", n), rate: 1 + (w.draw()-0.5)*0.018}
	p.rough = []float64{0.03, 0.2, 1}[int(3*w.draw())]
	store, err := casstore.New(&castest.Link{Server: w.server, Meet: p.meet, Lags: w.draw() < 0.5, Apart: w.draw() < 0.5}, casstore.Timeout(20*time.Millisecond+w.upTo(2*w.lease)))
	if err != nil {
		w.t.Fatal(err)
	}
	casstore.SetClock(store, p.now)
	p.store, p.style, p.callers = store, int(3*w.draw()), map[string]*caller{}
	for k := range keys {
		p.callers[fmt.Sprint("k", k)] = &caller{turns: make(chan struct{}, 1), offers: make(chan driver.Call, 1)}
	}
	return p
}

// now is the time by the process's clock.
func (p *process) now() time.Time {
	return p.begin.Add(time.Duration(float64(time.Since(p.begin)) * p.rate))
}

// meet is the weather.
func (p *process) meet(txn *casstore.Txn) castest.Fault {
	if !p.stormy() {
		return castest.Fault{Before: time.Millisecond, After: time.Millisecond}
	}
	p.mu.Lock()
	cut, unready := time.Now().Before(p.cut), time.Now().Before(p.unready)
	p.mu.Unlock()
	lot, rough := p.draw(), p.rough
	if txn == nil { // a report
		return castest.Fault{Before: p.delay(), Broken: cut || lot < 0.1*rough}
	}
	f := castest.Fault{Before: p.delay(), After: p.delay(), Lost: cut, Unsent: unready}
	switch {
	case lot < 0.1*rough:
		f.Lost = true
	case lot < 0.2*rough:
		f.Unanswered = true
	case lot < 0.25*rough:
		f.Broken = true
	case lot < 0.26*rough:
		f.Settled, f.Lost = true, cut || lot < 0.255*rough
	case lot < 0.27*rough:
		p.mu.Lock()
		defer p.mu.Unlock()
		p.cut = time.Now().Add(p.upTo(2 * p.lease))
	case lot < 0.29*rough:
		p.mu.Lock()
		defer p.mu.Unlock()
		p.unready = time.Now().Add(p.upTo(3 * p.lease))
	}
	return f
}

// delay is mostly short, and sometimes longer than leases are.
func (p *process) delay() time.Duration {
	switch lot := p.draw(); {
	case lot < 0.1*p.rough:
		return p.upTo(3 * p.lease)
	case lot < 0.4*p.rough:
		return p.upTo(p.lease / 3)
	default:
		return time.Millisecond + p.upTo(2*time.Millisecond)
	}
}

// trust is for how long, by the true time, a holder of this process trusts its lease.
func (p *process) trust(lease time.Duration) time.Duration {
	return time.Duration(float64(lease-clock.Drift(lease)) / p.rate)
}

// use takes and gives up the lock of a key until the end, as package core does.
func (p *process) use(key string) {
	c, owner := p.callers[key], ""
	for n := 0; time.Since(p.begin) < storm+calm/2; n++ {
		if owner == "" {
			owner = fmt.Sprintf("%s:%s:%d", p.name, key, n)
			if p.places && p.draw() < 0.7 {
				owner += map[bool]string{true: "s", false: "p"}[strings.HasSuffix(key, "0")]
			}
		}
		late := make(chan driver.Reply, 1)
		ask := driver.AcquireRequest{
			Key: key, Owner: owner, Kind: kindOf(owner), AtMost: permits, TTL: p.lease,
			Waiter: p.waiter(kindOf(owner)), Late: func(r driver.Reply, _ error) { late <- r },
		}
		if p.draw() < 0.3 {
			ask.Deadline = time.Now().Add(p.upTo(p.lease))
		}
		if kindOf(owner) == driver.Exclusive {
			ask.Offer = c.named
		}
		reply, err := p.store.Acquire(context.Background(), ask)
		if err == nil && !reply.Granted {
			c.refused(reply.Sent, reply)
		}
		switch {
		case errors.Is(err, driver.ErrPending):
			<-late
			p.orphan(key, owner)
			owner = ""
		case !reply.Granted && reply.Ambiguous:
			p.orphan(key, owner)
			owner = ""
		case reply.Granted:
			p.hold(key, owner, reply)
			owner = ""
			continue
		} // else the owner asks again
		wait := p.lease / 3
		if err == nil {
			wait = min(max(reply.TTL, 0)+time.Millisecond, p.lease)
		}
		select {
		case <-c.turns:
		case o := <-c.offers:
			p.take(key, c, o, ask.Kind == driver.Exclusive)
		case <-time.After(wait):
		}
	}
	select {
	case o := <-c.offers:
		p.orphan(key, p.offered(o))
	default:
	}
}

func isLost(err error) bool { return errors.Is(err, driver.ErrNotOwner) }

// hold holds a lock for a while.
func (p *process) hold(key, owner string, reply driver.Reply) {
	h := &holder{owner: owner, until: reply.Sent.Add(p.trust(p.lease))}
	if !time.Now().Before(h.until) {
		p.orphan(key, owner) // it came after the end of its lease
		return
	}
	p.enter(key, reply.Token, h)
	if p.draw() < 0.5 && !kindOf(owner).Place() {
		p.work.Go(func() { p.keep(key, reply.Token, h) })
	}
	abandon := p.draw() < 0.1 // the handler does not come back, and nothing is renewed
	for end := time.Now().Add(p.upTo(3 * p.lease)); time.Now().Before(end); {
		time.Sleep(min(time.Until(end), p.lease/3))
		if abandon {
			continue
		}
		sent, lost := time.Now(), false
		ctx, cancel := context.WithTimeout(context.Background(), p.lease/6)
		p.store.Renew(ctx, []driver.Renewal{{Key: key, Owner: owner, Kind: kindOf(owner), TTL: p.lease}}, func(_ int, _ bool, err error) {
			lost = isLost(err) || err == nil && !p.extend(key, h, sent.Add(p.trust(p.lease)))
		})
		if cancel(); lost || !time.Now().Before(h.until) {
			break
		}
	}
	if abandon {
		time.Sleep(time.Until(h.until))
		p.exit(key, h)
		return // the store has to give it up
	}
	p.exit(key, h)
	p.release(key, owner, reply.Ambiguous)
}

// release gives a lock up, and has that done again where the outcome is not known.
func (p *process) release(key, owner string, ambiguous bool) {
	_, err := p.store.Release(context.Background(), driver.ReleaseRequest{
		Key: key, Owner: owner, Kind: kindOf(owner), AtMost: permits, TTL: p.lease, Deadline: time.Now().Add(p.lease),
	})
	if ambiguous || err != nil && !isLost(err) {
		p.orphan(key, owner)
	}
}

// orphan releases an owner of unknown outcome, once: the store does the rest.
func (p *process) orphan(key, owner string) {
	p.work.Go(func() {
		_, _ = p.store.Release(context.Background(), driver.ReleaseRequest{
			Key: key, Owner: owner, Kind: kindOf(owner), AtMost: permits, TTL: p.lease, Deadline: time.Now().Add(p.lease),
		})
	})
}

// run runs the world, and returns what went wrong.
func (w *world) run() []string {
	var all []*process
	for n := range processes {
		all = append(all, w.newProcess(n))
	}
	for _, p := range all {
		defer p.store.Calls(p.name, p.hears)()
		for k := range keys {
			p.work.Go(func() { p.use(fmt.Sprint("k", k)) })
		}
	}
	time.Sleep(storm)
	w.mu.Lock()
	before := w.grants
	w.mu.Unlock()
	time.Sleep(calm)
	for _, p := range all {
		p.work.Wait()
	}
	if w.grants == before {
		w.complain("no lock was granted in calm weather; %d before", before)
	}
	for _, e := range w.server.Entries() {
		// A lock without a holder stays for lockers in line, which do not decline here.
		if strings.HasSuffix(e.Name, "/lock") && strings.Contains(e.Value, `"holds"`) || strings.Contains(e.Name, "/held/") {
			w.complain("%s stays: %s", e.Name, e.Value)
		}
	}
	for _, p := range all {
		if err := p.store.Close(); err != nil {
			w.complain("Close: %v", err)
		}
	}
	return w.wrong
}
