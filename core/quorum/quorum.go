package quorum

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/clock"
	"github.com/interlock-go/interlock/core/internal/host"
	"github.com/interlock-go/interlock/core/internal/logs"
	"github.com/interlock-go/interlock/core/internal/rediswire"
	"github.com/interlock-go/interlock/core/internal/timers"
)

const (
	// leastBudget and mostBudget bound the time that a node gets for its vote, which is a
	// hundredth of the lease between them, or slowTrips times the answer time of a
	// majority.
	leastBudget = 50 * time.Millisecond
	mostBudget  = 500 * time.Millisecond
	slowTrips   = 4
	// meetTrips is how many times the longest budget a node gets to be met: a connection
	// takes that many answers until its first vote.
	meetTrips = 6
	// budgetShare is the greatest part of a lease that a node's budget may be:
	// less than a tenth of it.
	budgetShare = 12
	// defaultMaxTTL is the longest lease that is expected: the default of the core.
	defaultMaxTTL = 30 * time.Second
)

// Store keeps each lock on a majority of independent Redis masters. It implements
// [driver.Store] and is safe for concurrent use. [New] makes one; the zero value does
// not work. Close it after the lockers that use it.
type Store struct {
	nodes     []*node
	admission *admission
	majority  int
	maxTTL    time.Duration
	timeout   time.Duration // of a node; zero: by the lease
	epoch     time.Time     // the origin for the nodes' clocks

	lockers  host.Lockers
	waits    waits
	pauses   pauses
	ballots  ballots
	gone     releasedOwners
	suspects atomic.Int32  // nodes that do not seem to answer
	leaving  atomic.Bool   // Close was called
	stir     chan struct{} // a request has ended while leaving
	clock    clock.Clock
	sweeps   timers.Scheduler[*node] // of the nodes' debts
	started  sync.Once               // the nodes are looked after
	work     *host.Work
}

// New makes a [Store] over independent masters: an odd number of them, at least
// three. It takes clients and not stores, because a node of a quorum needs special
// connections: each identifies its server before it carries a vote, and gives up long
// before a lease ends. New copies the options of the clients and sends nothing;
// [Store.Check] asks the nodes.
//
// It returns [driver.ErrConfig] for a bad option, fewer than three clients, an even
// number of clients, a nil client, a Ring or Cluster client, and for the same client
// or address twice. An even number tolerates no more failures than one node less: of
// six nodes two may fail, as of five. New cannot see that two addresses lead to one
// server. The store sees it at the first connection: the second address then has no
// vote, and Check reports it. New ignores an [Option] that is nil.
func New(nodes []redis.UniversalClient, opts ...Option) (*Store, error) {
	set := settings{node: rediswire.DefaultConfig(), log: new(logs.Log), maxTTL: defaultMaxTTL}
	for _, o := range opts {
		if o != nil {
			o(&set)
		}
	}
	if set.err != nil {
		return nil, set.err
	}
	if err := checkNumber(len(nodes)); err != nil {
		return nil, err
	}
	names := make([]string, len(nodes))
	for i, rdb := range nodes {
		c, ok := rdb.(*redis.Client)
		if !ok || c == nil {
			return nil, fmt.Errorf("%w: node %d is %T; a node is one master: a *redis.Client that is not nil",
				driver.ErrConfig, i, rdb)
		}
		names[i] = c.Options().Addr
		if j := slices.Index(nodes[:i], rdb); j >= 0 {
			return nil, fmt.Errorf("%w: nodes %d and %d are one client; each node is a server of its own",
				driver.ErrConfig, j, i)
		}
		// With Sentinel there is no address, but always this in its place.
		if j := slices.Index(names[:i], names[i]); j >= 0 && names[i] != "FailoverClient" {
			return nil, fmt.Errorf("%w: nodes %d and %d are both %s; each node is a server of its own",
				driver.ErrConfig, j, i, names[i])
		}
	}
	s := newStore(names, &set)
	timeout := mostBudget
	if set.timeout > 0 {
		timeout = set.timeout
	}
	for i, rdb := range nodes {
		own := set.node
		own.Timeout, own.Log = timeout, set.log.With("node", names[i])
		n, err := rediswire.NewNode(rdb, func(id rediswire.Identity) error { return s.met(i, id) }, own)
		if err != nil {
			_ = s.Close() // the nodes made so far
			return nil, err
		}
		s.nodes[i].server = n
	}
	return s, nil
}

// checkNumber returns an error for a number of nodes that New does not accept.
func checkNumber(n int) error {
	switch {
	case n < 3:
		return fmt.Errorf("%w: %d nodes; a quorum is of at least 3, better 5: with fewer, no node may fail",
			driver.ErrConfig, n)
	case n%2 == 0:
		return fmt.Errorf("%w: %d nodes tolerate no more failures than %d; use an odd number of nodes, at least 3",
			driver.ErrConfig, n, n-1)
	}
	return nil
}

// newStore makes a store. Its nodes have no connections yet.
func newStore(names []string, set *settings) *Store {
	n := len(names)
	s := &Store{
		admission: newAdmission(names, set), majority: n/2 + 1, maxTTL: set.maxTTL, timeout: set.timeout,
		epoch: time.Now(), clock: clock.New(),
		stir: make(chan struct{}, 1), work: host.Begin(set.log),
	}
	s.ballots.kept = set.maxTTL
	s.waits.keys = map[place]*waiting{}
	s.sweeps.Clock, s.sweeps.Serve = &s.clock, s.sweep
	s.sweeps.Go = func(run func()) { s.work.Go(run) }
	for i, name := range names {
		s.nodes = append(s.nodes, &node{store: s, index: i, name: name, stale: make(chan struct{}, 1)})
	}
	return s
}

// met takes the identity that a server gave on a new connection.
func (s *Store) met(i int, id rediswire.Identity) error {
	now := time.Now()
	s.nodes[i].sawClock(id.Clock, id.Asked, now)
	s.nodes[i].took(now.Sub(id.Asked))
	if s.admission.met(i, id, now) {
		s.nodes[i].refresh()
	}
	return nil
}

// Close ends the store. The store takes no more requests. Close waits for requests
// that are under way to the nodes, at most as long as a node has for its vote
// ([NodeTimeout]): a slow node may still be about to vote for a lock that the store
// has given up, and would keep that vote until its lease ends. Then Close asks the
// nodes once to give up votes that they still hold, and closes the connections. If a
// node cannot be reached, its locks end by their TTL. The clients given to [New] stay
// open. A second call returns nil.
func (s *Store) Close() error {
	if s.leaving.Swap(true) {
		return nil
	}
	s.settleNodes()
	s.work.End()
	s.sweeps.Stop()
	var err error
	for _, n := range s.nodes {
		if n.server != nil {
			err = errors.Join(err, n.server.Close())
		}
	}
	s.work.Wait()
	return err
}

// settleNodes waits until the nodes have answered, and settles the rest on them.
func (s *Store) settleNodes() {
	budget := cmp.Or(s.timeout, mostBudget)
	timer := time.NewTimer(budget)
	defer timer.Stop()
	for over := false; !over && s.busy(); {
		select {
		case <-s.stir:
		case <-timer.C:
			over = true
		}
	}
	var wg sync.WaitGroup
	end := time.Now().Add(budget)
	for _, n := range s.nodes {
		wg.Go(func() { n.settleAll(end) })
	}
	wg.Wait()
}

// busy reports whether requests are under way that may change something on a node.
func (s *Store) busy() bool {
	for _, n := range s.nodes {
		if n.busy() {
			return true
		}
	}
	return false
}

// budget is the time that a node has for its vote on a lease.
func (s *Store) budget(ttl time.Duration) time.Duration {
	d := s.timeout
	if d == 0 {
		d = max(ttl/100, leastBudget, slowTrips*s.trip())
	}
	return min(d, s.mostBudget(ttl))
}

// mostBudget is the longest budget for a lease.
func (s *Store) mostBudget(ttl time.Duration) time.Duration {
	return min(cmp.Or(s.timeout, mostBudget), ttl/budgetShare)
}

// trip is how long the answers of the quickest majority of the nodes took lately; zero if a
// majority has not answered yet.
func (s *Store) trip() time.Duration {
	trips := make([]int64, len(s.nodes))
	for i, n := range s.nodes {
		if trips[i] = n.trip.Load(); trips[i] == 0 {
			trips[i] = math.MaxInt64
		}
	}
	slices.Sort(trips)
	if trip := trips[s.majority-1]; trip < math.MaxInt64 {
		return time.Duration(trip)
	}
	return 0
}

// releasedOwners remembers the last owners with an announced release: where such an
// owner still holds a node, the release has only not reached that node yet.
type releasedOwners struct {
	mu    sync.Mutex
	known map[string]struct{}
	ring  [512]string
	next  int
}

func (d *releasedOwners) add(owner string) {
	if owner == "" {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, ok := d.known[owner]; ok {
		return
	}
	if d.known == nil {
		d.known = make(map[string]struct{}, len(d.ring))
	}
	delete(d.known, d.ring[d.next])
	d.ring[d.next] = owner
	d.known[owner] = struct{}{}
	d.next = (d.next + 1) % len(d.ring)
}

func (d *releasedOwners) has(owner string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, ok := d.known[owner]
	return ok
}

var _ driver.Store = (*Store)(nil)
