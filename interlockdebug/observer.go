package interlockdebug

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/observe"
)

const (
	// maxRules is the number of rules that are counted one by one; others share a line.
	maxRules = 200
	// maxLosses is the number of losses that are remembered.
	maxLosses = 20

	otherRules = "(other rules)"
)

// Observer counts what happens to locks, for the page. Make it with [NewObserver] and
// give it to core.WithObserver, and for idempotent endpoints without a rule
// (idempotency.Under) to idempotency.WithObserver; one Observer may have several of both.
// It is safe for concurrent use. All its lockers share one mutex, held for a few counts.
type Observer struct {
	mu     sync.Mutex
	rules  map[string]*rule
	losses []core.Loss // the newest last
	lostAt []time.Time

	first, last *call // acquisitions under way, in order of their beginning
}

// NewObserver returns an [Observer] that has seen nothing.
func NewObserver() *Observer { return &Observer{rules: map[string]*rule{}} }

// tally counts the events of a rule.
type tally struct {
	granted, reentered, contended, handedOver int64
	renewed, renewalsFailed                   int64
	rejected, bypassed                        int64
}

// rule has the counts of one rule.
type rule struct {
	tally
	waiting, holding       int
	refused, lost, decided map[string]int64
	wait, hold             histogram
	batches, items         int64 // of package gather
	largest                int
}

// call is one observation of a lock: an acquisition, and the lease that it yields.
// The mutex of the Observer guards it.
type call struct {
	observer   *Observer
	rule       *rule
	ctx        context.Context // the caller's
	keys       []string
	begin      time.Time
	standby    bool // how long it waits says nothing
	prev, next *call

	holding bool // it is counted as a holder
	over    bool // released or lost, which can come first
}

// Start implements [observe.Observer].
func (o *Observer) Start(ctx context.Context, op observe.Operation) (context.Context, observe.Observation) {
	if op.Unlocked {
		return ctx, o.unlocked(op.Rule)
	}
	c := &call{observer: o, ctx: ctx, keys: op.Keys, begin: time.Now(), standby: op.Standby}
	o.mu.Lock()
	c.rule = o.rule(op.Rule)
	c.rule.waiting++
	c.prev = o.last
	if o.last == nil {
		o.first = c
	} else {
		o.last.next = c
	}
	o.last = c
	o.mu.Unlock()
	return ctx, observe.Observation{Acquired: c.acquired, Released: c.released, Renewed: c.renewed, Lost: c.lost, Gathered: c.gathered}
}

// unlocked observes a request that asks for no lock.
func (o *Observer) unlocked(name string) observe.Observation {
	count := func(f func(*rule)) {
		o.mu.Lock()
		defer o.mu.Unlock()
		f(o.rule(name))
	}
	return observe.Observation{
		Rejected: func(error) { count(func(r *rule) { r.rejected++ }) },
		Bypassed: func(error) { count(func(r *rule) { r.bypassed++ }) },
		Decided:  func(d observe.Decided) { count(func(r *rule) { add(&r.decided, d.Outcome) }) },
	}
}

// rule returns the counts of a rule. Called with the mutex held.
func (o *Observer) rule(name string) *rule {
	r := o.rules[name]
	if r == nil && len(o.rules) >= maxRules {
		name = otherRules
		r = o.rules[name]
	}
	if r == nil {
		r = &rule{}
		o.rules[name] = r
	}
	return r
}

// add counts one more of a kind.
func add(counts *map[string]int64, what string) {
	if *counts == nil {
		*counts = map[string]int64{}
	}
	(*counts)[what]++
}

func (c *call) acquired(a observe.Acquired) {
	var reason string
	if a.Err != nil {
		reason = string(core.ReasonOf(c.ctx, a.Err))
	}
	o, r := c.observer, c.rule
	o.mu.Lock()
	defer o.mu.Unlock()
	o.remove(c)
	r.waiting--
	if a.Contended {
		r.contended++
	}
	switch {
	case a.Err != nil:
		add(&r.refused, reason)
	case a.Reentered:
		r.reentered++
	default:
		r.granted++
		if !c.standby {
			r.wait.add(a.Waited)
		}
		if c.holding = !c.over; c.holding {
			r.holding++
		}
	}
	c.ctx, c.keys = nil, nil // a lease may be held for long
}

// remove takes an acquisition out of those under way. Called with the mutex held.
func (o *Observer) remove(c *call) {
	if c.prev == nil {
		o.first = c.next
	} else {
		c.prev.next = c.next
	}
	if c.next == nil {
		o.last = c.prev
	} else {
		c.next.prev = c.prev
	}
	c.prev, c.next = nil, nil
}

func (c *call) released(r observe.Released) {
	o := c.observer
	o.mu.Lock()
	defer o.mu.Unlock()
	if c.holding {
		c.rule.hold.add(r.Held)
	}
	if r.HandedOver {
		c.rule.handedOver++
	}
	if r.Lost != nil {
		o.noteLoss(c.rule, *r.Lost)
	}
	c.end()
}

func (c *call) gathered(g observe.Gathered) {
	c.observer.mu.Lock()
	defer c.observer.mu.Unlock()
	c.rule.batches++
	c.rule.items += int64(g.Items)
	c.rule.largest = max(c.rule.largest, g.Items)
}

func (c *call) renewed(r observe.Renewed) {
	c.observer.mu.Lock()
	defer c.observer.mu.Unlock()
	if r.Err != nil {
		c.rule.renewalsFailed++
	} else {
		c.rule.renewed++
	}
}

func (c *call) lost(l core.Loss) {
	c.observer.mu.Lock()
	defer c.observer.mu.Unlock()
	c.observer.noteLoss(c.rule, l)
	if c.holding {
		c.rule.hold.add(l.Held)
	}
	c.end()
}

// end notes that the lease is held no longer. Called with the mutex held.
func (c *call) end() {
	c.over = true
	if c.holding {
		c.holding = false
		c.rule.holding--
	}
}

// noteLoss remembers a loss. Called with the mutex held.
func (o *Observer) noteLoss(r *rule, l core.Loss) {
	add(&r.lost, string(l.Reason))
	if len(o.losses) == maxLosses {
		o.losses, o.lostAt = slices.Delete(o.losses, 0, 1), slices.Delete(o.lostAt, 0, 1)
	}
	o.losses, o.lostAt = append(o.losses, l), append(o.lostAt, time.Now())
}

// waiting returns since when the oldest acquisition of each key is under way.
func (o *Observer) waiting() map[string]time.Time {
	since := map[string]time.Time{}
	if o == nil {
		return since
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for c := o.first; c != nil; c = c.next {
		for _, key := range c.keys {
			if _, older := since[key]; !older {
				since[key] = c.begin
			}
		}
	}
	return since
}
