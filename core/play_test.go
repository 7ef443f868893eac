package core_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/memstore"
)

// play is one run of a small world of a few processes. The test decides when their requests,
// replies and messages arrive. Each caller takes the lock twice. Usually a play takes the first of
// these: the letter that was posted first, then the next caller that comes, then the release of a
// holder, then time. A play that leaves the usual order at some steps has a twist for each.
type play struct {
	t      *testing.T
	store  *memstore.Store
	twists []twist
	ways   []int // what each step had to choose from

	mu      sync.Mutex
	players []*player
	callers []*role
	letters []*letter // in the order of posting
	trace   []string
	began   time.Time
	since   time.Time     // from when on the lock was free while a caller waited; zero: it was not
	bound   time.Duration // for how long it may be
	token   int64         // the greatest
	alone   int64         // the greatest of an exclusive holder
	ended   bool
}

// twist is a choice at a step.
type twist struct{ step, choice int }

// player is a process, and its way to the store.
type player struct {
	*memstore.Store
	play   *play
	name   string
	locker *core.Locker
	dead   bool
	hear   func(driver.Call) // nil: it gets no calls yet
}

// letter is a request, a reply or a message on its way.
type letter struct {
	from  *player
	what  string
	last  bool // no caller waits for it, and others overtake it
	open  func()
	loses func()
	fails func() // the store is not ready for the request; nil if it is none
	call  bool   // it may come twice
}

// role is a caller that takes the lock twice.
type role struct {
	*player
	name  string
	opts  []core.Option
	left  int // how often it takes the lock
	state roleState
	ctx   context.Context //nolint:containedctx // of the call
	leave context.CancelFunc
	lease *core.Lease
}

type roleState int

const (
	tocome roleState = iota
	awaits
	holds
	done
)

// scene is what a play begins with: the options of the callers of each process.
type scene [][][]core.Option

// act runs a play to its end.
func act(t *testing.T, s scene, twists []twist) (p *play) {
	synctest.Test(t, func(t *testing.T) {
		p = &play{t: t, store: memstore.New(), twists: twists, began: time.Now(), bound: freeMost}
		for i, opts := range s {
			m := &player{Store: p.store, play: p, name: fmt.Sprint("p", i)}
			var err error
			if m.locker, err = core.New(m, core.Watchdog(wakeupLease)); err != nil {
				t.Fatal(err)
			}
			core.Invalid(m.locker, func(err error) { p.invalid(err) })
			p.players = append(p.players, m)
			for j, o := range opts {
				ctx, leave := context.WithCancel(context.Background())
				p.callers = append(p.callers, &role{player: m, name: fmt.Sprint(m.name, "c", j), opts: o, left: 2, ctx: ctx, leave: leave})
			}
		}
		for more := true; more && !t.Failed(); {
			more = p.next()
		}
		p.end()
	})
	return p
}

// post puts a letter on its way.
func (m *player) post(what string, open, loses, fails func()) {
	m.play.mu.Lock()
	defer m.play.mu.Unlock()
	if !m.dead {
		m.play.letters = append(m.play.letters, &letter{
			from: m, what: m.name + " " + what, last: what == "declines", open: open, loses: loses, fails: fails,
			call: strings.HasPrefix(what, "is "),
		})
	} else if m.play.ended {
		go loses()
	}
}

// choice is something that can happen.
type choice struct {
	what string
	do   func()
}

// next lets something happen. It reports false once all callers are done.
func (p *play) next() bool {
	synctest.Wait()
	p.judge()
	all := p.choices()
	if all == nil {
		return false
	}
	n := 0
	for _, tw := range p.twists {
		if tw.step == len(p.ways) {
			n = min(tw.choice, len(all)-1)
		}
	}
	p.ways = append(p.ways, len(all))
	p.trace = append(p.trace, fmt.Sprintf("%8v %s", time.Since(p.began), all[n].what))
	if len(p.ways) > 3000 {
		p.fails("the play does not end")
	}
	all[n].do()
	return true
}

// choices are what can happen at this step. The first is what usually does; nil once all callers are
// done.
func (p *play) choices() (all []choice) {
	p.mu.Lock()
	defer p.mu.Unlock()
	add := func(what string, do func()) { all = append(all, choice{what, do}) }
	opens := func(last bool) {
		for _, l := range p.letters {
			if l.last == last {
				add(l.what, func() { p.take(l); l.open() })
			}
		}
	}
	opens(false)
	busy := false
	for _, c := range p.callers {
		if c.state == tocome && !c.dead {
			add(c.name+" comes", func() { c.comes() })
			busy = true
			break
		}
	}
	opens(true)
	for _, c := range p.callers {
		if c.state == holds && !c.dead {
			add(c.name+" releases", func() { c.releases() })
		}
		busy = busy || c.state != done && !c.dead
	}
	if !busy {
		return nil
	}
	tick := 10 * time.Millisecond
	if len(p.ways) > 200 {
		tick = longTick // an end of a lease
	}
	add("time", func() { time.Sleep(tick) })
	if len(all) == 1 && p.twistless() {
		return all
	}
	for _, d := range []time.Duration{100 * time.Millisecond, 2 * time.Second} {
		add(fmt.Sprint("time ", d), func() {
			p.bound += 2 * d // letters are late, and so are their effects
			time.Sleep(d)
		})
	}
	for _, c := range p.callers {
		if c.state == awaits && !c.dead {
			add(c.name+" leaves", c.leaves)
		}
	}
	for _, l := range p.letters {
		if l.call {
			add(l.what+" twice", func() { p.take(l); l.open(); l.open() })
			add(l.what+" now and later", func() { l.call = false; l.open() })
		}
		add(l.what+" is lost", func() { p.take(l); p.bound += l.costs(); l.loses() })
		if l.fails != nil {
			add(l.what+" when the store is not ready", func() { p.take(l); p.bound += l.costs(); l.fails() })
		}
	}
	for _, m := range p.players {
		if !m.dead {
			add(m.name+" dies", func() { p.kill(m) })
		}
		if !m.dead && m.hear != nil {
			add(m.name+" gets a forged call", func() { m.hear(driver.Call{What: driver.Turn, Key: "k", Others: true}) })
			add(m.name+" gets a forged call for later", func() { m.hear(driver.Call{What: driver.Turn, Key: "k", In: time.Hour}) })
			add(m.name+" is not sure", func() { m.hear(driver.Call{Reached: true}) })
		}
	}
	add("the clock is set back", func() { p.store.StepClock(-time.Minute); p.bound += driver.OfferLasts })
	return all
}

// twistless reports whether no twist is left, so that steps need not count what else could happen.
func (p *play) twistless() bool {
	return !slices.ContainsFunc(p.twists, func(tw twist) bool { return tw.step >= len(p.ways) })
}

// longTick is the longest step of the time.
const longTick = 100 * time.Millisecond

// costs is for how long the lock may be free in addition if a letter is lost. A release is sent again
// after a pause.
func (l *letter) costs() time.Duration {
	switch {
	case strings.HasSuffix(l.what, " is offered the lock"):
		return driver.OfferLasts
	case strings.HasSuffix(l.what, " releases"):
		return time.Second
	default:
		return 0
	}
}

func (p *play) take(l *letter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.letters = slices.DeleteFunc(p.letters, func(x *letter) bool { return x == l })
}

func (p *play) kill(m *player) {
	p.mu.Lock()
	defer p.mu.Unlock()
	m.dead = true
	p.letters = slices.DeleteFunc(p.letters, func(l *letter) bool { return l.from == m })
	p.bound += driver.OfferLasts + mostStands
}

// comes has a caller wait for the lock.
func (c *role) comes() {
	c.state, c.left = awaits, c.left-1
	go func() {
		lease, err := c.locker.Lock(c.ctx, "k", c.opts...)
		c.play.mu.Lock()
		defer c.play.mu.Unlock()
		if err == nil {
			c.state, c.lease = holds, lease
			c.play.granted(c)
			return
		}
		c.over()
	}()
}

// granted compares a grant with what others have. The caller holds p.mu.
func (p *play) granted(c *role) {
	p.trace = append(p.trace, fmt.Sprintf("%8v      %s holds the lock with token %d", time.Since(p.began), c.name, c.lease.Token()))
	if p.ended {
		return
	}
	for _, other := range p.callers {
		if other != c && other.state == holds && (!c.shares() || !other.shares()) && other.lease.Context().Err() == nil {
			p.fails(fmt.Sprintf("%s and %s hold the lock; want one holder", other.name, c.name))
		}
	}
	token, before := c.lease.Token(), p.token
	if c.shares() {
		before = p.alone // replies to holders that share the lock come in any order
	} else {
		p.alone = max(p.alone, token)
	}
	if token <= before {
		p.fails(fmt.Sprintf("token %d after %d; want a greater one", token, before))
	}
	p.token = max(p.token, token)
}

func (c *role) shares() bool { return len(c.opts) > 0 && &c.opts[0] == &sharing[0] }

// sharing are the options of a caller that shares the lock.
var sharing = []core.Option{core.Shared()}

func (c *role) releases() {
	lease := c.lease
	c.over()
	go func() { _ = lease.Release(context.Background()) }()
}

// leaves has a caller give up. When it comes again, it has another context.
func (c *role) leaves() {
	c.leave()
	synctest.Wait()
	c.ctx, c.leave = context.WithCancel(context.Background())
}

// over has the caller come again, or no more.
func (c *role) over() {
	if c.state = done; c.left > 0 {
		c.state = tocome
	}
}

// judge watches for how long the lock is free while a live caller waits.
func (p *play) judge() {
	_, _, held := p.store.Holder("k")
	p.mu.Lock()
	defer p.mu.Unlock()
	waiting := slices.ContainsFunc(p.callers, func(c *role) bool { return c.state == awaits && !c.dead && c.ctx.Err() == nil })
	using := slices.ContainsFunc(p.callers, func(c *role) bool { return c.state == holds && !c.dead }) // by an offer
	switch now := time.Now(); {
	case held || using || !waiting:
		p.since = time.Time{}
	case p.since.IsZero():
		p.since = now
	case now.Sub(p.since) > p.bound+longTick: // a letter that is sent during a tick is delivered after it
		p.fails(fmt.Sprintf("the lock is free for %v while a caller waits; want %v at most", now.Sub(p.since), p.bound))
	}
}

// invalid reports a lock with fields that contradict each other.
func (p *play) invalid(err error) {
	p.t.Errorf("%v; want the rules of a lock to hold. Twists %v; the play was\n%s", err, p.twists, strings.Join(p.trace, "\n"))
}

func (p *play) fails(what string) {
	p.t.Errorf("%s. Twists %v; the play was\n%s", what, p.twists, strings.Join(p.trace, "\n"))
}

// end closes the processes.
func (p *play) end() {
	p.mu.Lock()
	p.ended = true
	for _, m := range p.players {
		m.dead = true // from now on requests fail at once
	}
	lost := p.letters
	p.letters = nil
	p.mu.Unlock()
	for _, l := range lost {
		l.loses()
	}
	for _, c := range p.callers {
		c.leave()
	}
	for _, m := range p.players {
		ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		_ = m.locker.Close(ctx)
		cancel()
	}
	time.Sleep(time.Hour)
}

// send sends a request to the store and waits for the reply, which late gets if the caller has left.
func send[T any](
	ctx context.Context, m *player, deadline time.Time, what string, execute func() (T, error), unknown T, late func(T, error),
) (T, error) {
	type outcome struct {
		rep T
		err error
	}
	var mu sync.Mutex
	left, answer := false, make(chan outcome, 1)
	deliver := func(rep T, err error) {
		mu.Lock()
		gone := left
		if !gone {
			answer <- outcome{rep, err}
		}
		mu.Unlock()
		if gone && late != nil {
			late(rep, err)
		}
	}
	lost := func() { deliver(unknown, driver.ErrUnavailable) }
	var notSent T
	m.post(what, func() {
		rep, err := execute()
		m.post("the reply to "+what, func() { deliver(rep, err) }, lost, nil)
	}, lost, func() { deliver(notSent, driver.ErrNotReady) })
	var timeout <-chan time.Time
	if !deadline.IsZero() {
		timer := time.NewTimer(time.Until(deadline))
		defer timer.Stop()
		timeout = timer.C
	}
	select {
	case out := <-answer:
		return out.rep, out.err
	case <-ctx.Done():
	case <-timeout:
	}
	mu.Lock()
	defer mu.Unlock()
	select {
	case out := <-answer:
		return out.rep, out.err
	default:
		left = true
	}
	var none T
	if late != nil {
		return none, driver.ErrPending
	}
	return none, driver.ErrUnavailable
}

func (m *player) Acquire(ctx context.Context, req driver.AcquireRequest) (driver.Reply, error) {
	sent := time.Now()
	bare := req
	bare.Late, bare.Deadline = nil, time.Time{}
	return send(ctx, m, req.Deadline, "asks", func() (driver.Reply, error) {
		rep, err := m.Store.Acquire(context.Background(), bare)
		rep.Sent = sent
		return rep, err
	}, driver.Reply{Sent: sent, Ambiguous: true}, req.Late)
}

// Stand implements [driver.Turns].
func (m *player) Stand(ctx context.Context, req driver.AcquireRequest) (driver.Reply, error) {
	return send(ctx, m, time.Time{}, "stands", func() (driver.Reply, error) {
		return m.Store.Stand(context.Background(), req)
	}, driver.Reply{}, nil)
}

func (m *player) Renew(ctx context.Context, batch []driver.Renewal, done func(i int, contended bool, err error)) {
	for i, r := range batch {
		contended, err := send(ctx, m, time.Time{}, "renews", func() (contended bool, err error) {
			m.Store.Renew(context.Background(), []driver.Renewal{r}, func(_ int, c bool, e error) { contended, err = c, e })
			return contended, err
		}, false, nil)
		done(i, contended, err)
	}
}

func (m *player) Release(_ context.Context, req driver.ReleaseRequest) (driver.Waiting, error) {
	return send(context.Background(), m, req.Deadline, "releases", func() (driver.Waiting, error) {
		return m.Store.Release(context.Background(), req)
	}, driver.Waiting{}, nil)
}

// Decline implements [driver.Turns].
func (m *player) Decline(ctx context.Context, key, waiter string) error {
	_, err := send(ctx, m, time.Time{}, "declines", func() (none struct{}, err error) {
		return none, m.Store.Decline(context.Background(), key, waiter)
	}, struct{}{}, nil)
	return err
}

// Calls implements [driver.Store]. All calls come over one subscription: where one is lost, the subscription is made
// anew.
func (m *player) Calls(id string, hear func(driver.Call)) (stop func()) {
	m.hear = hear
	unsure := func() { hear(driver.Call{Reached: true}) }
	return m.Store.Calls(id, func(c driver.Call) {
		switch c.What {
		case driver.Unsure:
			hear(c)
		case driver.Offered:
			m.post("is offered the lock", func() { hear(c) }, unsure, nil)
		case driver.Turn:
			m.post("is called", func() { hear(c) }, unsure, nil)
		case driver.Wanted, driver.Displaced:
			m.post("is notified", func() { hear(c) }, unsure, nil)
		}
	})
}
