package core_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/memstore"
)

// TestLocksExcludeWhateverBecomesOfRequests has callers of three lockers use two keys in
// every way there is, while requests are late, lost, or executed without a reply. No caller
// is granted what another caller still trusts, tokens grow, and in the end nothing is left.
func TestLocksExcludeWhateverBecomesOfRequests(t *testing.T) {
	total := map[string]int{}
	for seed := range uint64(randomRuns) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &places{
					T: t, random: rand.New(rand.NewPCG(seed, 2)), trusted: map[*core.Lease]string{}, had: map[int64]bool{}, total: total,
				}
				p.run()
			})
		})
	}
	for _, how := range []string{"handed over", "taken over", "taken twice"} {
		if total[how] < randomRuns {
			t.Errorf("%d tickets are %s: the test shows little", total[how], how)
		}
	}
}

const (
	placesLease = 3 * time.Second
	placesMost  = 2 // permits
)

// places is one run.
type places struct {
	*testing.T
	mu      sync.Mutex
	random  *rand.Rand
	trusted map[*core.Lease]string // how it is held
	last    map[string]int64       // by key, the token of the last exclusive holder
	had     map[int64]bool         // tokens of permits
	grants  map[string]int         // by how it was held
	total   map[string]int         // likewise, of all runs
	kept    []*kept
}

// kept is a lock that is kept for a ticket.
type kept struct {
	core.Ticket
	how    string
	until  time.Time
	asked  bool // a caller has brought it
	takers int
}

func (p *places) upTo(d time.Duration) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Duration(p.random.Int64N(int64(d)))
}

func (p *places) one(of int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.random.IntN(of) == 0
}

func (p *places) some(d time.Duration, of int) time.Duration {
	if p.one(of) {
		return p.upTo(d)
	}
	return p.upTo(time.Millisecond)
}

func (p *places) run() {
	p.last, p.grants = map[string]int64{}, map[string]int{}
	s := newStore()
	s.Intercept(func(memstore.Request) memstore.Fault {
		f := memstore.Fault{Before: p.some(2*placesLease, 30), After: p.some(2*placesLease, 30)}
		if p.one(20) {
			f.Err, f.Executed, f.Ambiguous = core.ErrUnavailable, !p.one(3), true
			if p.one(2) {
				f.Err, f.Ambiguous = driver.ErrNotReady, f.Executed
			}
		}
		return f
	})
	var lockers []*core.Locker
	var all sync.WaitGroup
	for range 3 {
		l := newLocker(p, s, core.Watchdog(placesLease))
		lockers = append(lockers, l)
		for range 6 {
			all.Go(func() {
				for range 40 {
					p.use(l)
				}
			})
		}
	}
	if p.one(2) {
		time.Sleep(p.upTo(10 * placesLease))
		ctx, cancel := context.WithTimeout(p.Context(), p.upTo(2*placesLease))
		defer cancel()
		_ = lockers[0].Close(ctx)
	}
	all.Wait()
	s.Intercept(nil)
	time.Sleep(2 * time.Minute) // late requests are carried out, and their effects cleaned up
	for i, l := range lockers {
		if n := core.Entries(l); n != 0 {
			p.Errorf("%d entries are left", n)
		}
		if n := core.Turns(l); n != 0 {
			p.Errorf("%d turns are counted", n)
		}
		if n := core.Orphans(l); n != 0 && i > 0 { // a closed one leaves them to their TTL
			p.Errorf("%d owners are still orphans", n)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for how, n := range p.grants {
		p.total[how] += n
	}
	for _, how := range []string{"exclusive", "shared", "permit"} {
		if p.grants[how] < 5 {
			p.Errorf("%d holds are %s: the test shows little", p.grants[how], how)
		}
	}
}

// use takes a key in the mode of its callers, at random.
func (p *places) use(l *core.Locker) {
	ctx, cancel := context.WithTimeout(p.Context(), time.Millisecond+p.upTo(4*placesLease))
	defer cancel()
	if p.one(3) {
		ctx = p.Context()
	}
	how, key, kind := "exclusive", "shared", core.Name("")
	if p.one(2) {
		key = "permits"
	}
	switch {
	case p.one(4):
	case key == "shared":
		how, kind = "shared", core.Shared()
	default:
		how, kind = "permit", core.Permits(placesMost)
	}
	opts := []core.Option{kind, core.Wait(time.Millisecond + p.upTo(2*placesLease))}
	if p.one(5) {
		opts = append(opts, core.TTL(placesLease))
	}
	if p.one(6) {
		opts = append(opts, core.MaxHold(time.Millisecond+p.upTo(placesLease)))
	}
	keys := []string{key}
	if how == "exclusive" && p.one(4) {
		keys = []string{"shared", "permits"}
	}
	take := func() (*core.Lease, error) { return l.LockAll(ctx, keys, opts...) }
	if p.one(4) {
		take = func() (*core.Lease, error) { return l.TryLock(ctx, key, kind) }
	}
	if ticket := p.ticket(); ticket != nil && p.one(4) {
		how = ticket.how
		take = func() (*core.Lease, error) { return p.takeOver(ctx, l, ticket) }
	}
	held, err := take()
	if err != nil {
		return
	}
	p.granted(held, how)
	time.Sleep(p.some(2*placesLease, 5))
	if p.one(4) {
		if again, err := l.Lock(held.Context(), key, kind); err == nil {
			defer again.Release(ctx)
		}
	}
	if p.one(4) {
		_ = held.Check(ctx)
	}
	p.mu.Lock()
	delete(p.trusted, held)
	p.mu.Unlock()
	if how != "shared" && p.one(3) {
		p.handOver(ctx, held, how)
	}
	_ = held.Release(ctx)
}

// handOver hands a lease over. Until a caller brings the ticket, no other caller may have the lock.
func (p *places) handOver(ctx context.Context, held *core.Lease, how string) {
	k := &kept{how: how, until: time.Now().Add(placesLease)}
	var err error
	if k.Ticket, err = held.HandOver(ctx, placesLease); err != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.kept = append(p.kept, k)
	p.grants["handed over"]++
	if time.Now().Before(k.until) {
		p.crowded(k.Key(), how, nil)
	}
}

// ticket returns a ticket that was handed over lately; others may bring it, too.
func (p *places) ticket() *kept {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.kept) == 0 {
		return nil
	}
	return p.kept[len(p.kept)-1-p.random.IntN(min(3, len(p.kept)))]
}

func (p *places) takeOver(ctx context.Context, l *core.Locker, k *kept) (*core.Lease, error) {
	p.mu.Lock()
	k.asked = true
	p.mu.Unlock()
	lease, err := l.TakeOver(ctx, k.Ticket)
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case err == nil:
		p.grants["taken over"]++
		if k.takers++; k.takers > 1 {
			p.Errorf("%s: the ticket is taken over twice", k.Key())
		}
		if lease.Token() <= k.Token() {
			p.Errorf("%s: token %d by a ticket with %d", k.Key(), lease.Token(), k.Token())
		}
	case errors.Is(err, core.ErrTicketTaken):
		p.grants["taken twice"]++
	}
	return lease, err
}

// granted looks who else trusts a lease of the key.
func (p *places) granted(held *core.Lease, how string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, key := range held.Keys() {
		p.beside(held, key, how)
	}
	p.trusted[held] = how
	p.grants[how]++
}

func (p *places) beside(held *core.Lease, key, how string) {
	token, _ := held.TokenFor(key)
	if held.Err() == nil {
		p.crowded(key, how, held)
	}
	switch {
	case token <= p.last[key]:
		p.Errorf("%s: token %d of a %s hold, after %d", key, token, how, p.last[key])
	case how == "permit" && p.had[token]:
		p.Errorf("%s: token %d twice", key, token)
	case how == "permit":
		p.had[token] = true
	case how == "exclusive":
		p.last[key] = token
	}
}

// crowded looks who has the lock besides a holder, or besides a ticket.
func (p *places) crowded(key, how string, held *core.Lease) {
	permits := 0
	beside := func(kind string) {
		if how == "exclusive" || kind == "exclusive" {
			p.Errorf("%s: %s beside %s", key, how, kind)
		}
		if permits++; how == "permit" && permits >= placesMost {
			p.Errorf("%s: %d permits of %d", key, permits+1, placesMost)
		}
	}
	for other, kind := range p.trusted {
		if slices.Contains(other.Keys(), key) && other.Err() == nil {
			beside(kind)
		}
	}
	for _, k := range p.kept {
		if held != nil && k.Key() == key && !k.asked && time.Now().Before(k.until) {
			beside(k.how)
		}
	}
}
