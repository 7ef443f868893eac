package redisstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
)

const (
	// fenceTime is how much longer than its lease the last token of a key is
	// remembered. It covers clocks that disagree by that much after a failover.
	fenceTime = time.Minute
	// maxList is the greatest length of the list of waiting lockers, in bytes:
	// about sixty of them.
	maxList = 2048
	// reloadEvery bounds how often the cluster's topology is asked for.
	reloadEvery = 100 * time.Millisecond
)

// Store keeps locks in Redis. It implements core.Store and is safe for
// concurrent use. Close it after the lockers that use it.
type Store struct {
	names   names
	log     *slog.Logger
	publish string
	ack     ack

	// The store's own connections: one of the two.
	single  *redis.Client
	cluster *redis.ClusterClient
	// The same again, for renewals alone.
	renewSingle  *redis.Client
	renewCluster *redis.ClusterClient

	mu        sync.Mutex
	nodes     map[string]*lanes // by address
	direct    *lanes            // of single
	routed    atomic.Bool       // the cluster's topology has been read once
	following chan struct{}     // a place for each redirection under way

	hub      *hub
	shut     atomic.Bool
	mute     atomic.Bool  // releases cannot be announced, which was said
	reloaded atomic.Int64 // unix nanoseconds
}

// Option changes a Store.
type Option func(*settings)

type settings struct {
	prefix  string
	log     *slog.Logger
	timeout time.Duration
	ack     ack
	err     error

	greet func(context.Context, *redis.Conn) error // of a Node
}

// Prefix sets what the names of all keys and channels begin with. Default
// "interlock". Lockers exclude each other only under the same prefix.
func Prefix(p string) Option {
	return func(s *settings) {
		if p == "" || strings.ContainsAny(p, "{}") {
			s.err = fmt.Errorf("%w: Prefix(%q): must not be empty nor contain braces, which mark the hash tag", core.ErrConfig, p)
			return
		}
		s.prefix = p
	}
}

// Logger sets where warnings go. Default slog.Default().
func Logger(l *slog.Logger) Option {
	return func(s *settings) {
		if l != nil {
			s.log = l
		}
	}
}

// Timeout bounds each try of a request, from its writing to its reply. Default
// 1 s; at least 10 ms. Renewals have a bound of their own, a sixth of the lease.
func Timeout(d time.Duration) Option {
	return func(s *settings) {
		if d < 10*time.Millisecond {
			s.err = fmt.Errorf("%w: Timeout(%v): must be at least 10ms", core.ErrConfig, d)
			return
		}
		s.timeout = d
	}
}

// New makes a Store from a client for a single server, for one behind Sentinel
// or for a Cluster, whose options it copies to make connections of its own. It
// sends nothing. It warns through the logger about options of the client that
// would hurt a lock, and says what it does about each, and returns
// core.ErrConfig for a nil client, a Ring (which has no master to ask) and
// clients it does not know.
func New(rdb redis.UniversalClient, opts ...Option) (*Store, error) {
	set := settings{prefix: "interlock", log: slog.Default(), timeout: time.Second}
	for _, o := range opts {
		if o != nil {
			o(&set)
		}
	}
	switch {
	case set.err != nil:
		return nil, set.err
	case set.ack.renewals && set.ack.replicas == 0:
		return nil, fmt.Errorf("%w: ReplicatedRenewals without Replicas, which says how many", core.ErrConfig)
	}
	s := &Store{
		names: names{set.prefix}, log: set.log, publish: "PUBLISH", ack: set.ack,
		following: make(chan struct{}, maxFollowing),
	}
	// A question to the replicas takes its time before its answer comes.
	set.timeout += set.ack.within
	switch c := rdb.(type) {
	case *redis.Client:
		if c == nil {
			return nil, errNil
		}
		inspect(set.log, set.timeout, optionsOf(c.Options()))
		o := set.greeted(c.Options())
		s.single = redis.NewClient(private(o, set.timeout, poolSize))
		s.renewSingle = redis.NewClient(private(o, set.timeout, renewalPool))
		s.direct = &lanes{client: s.single, ack: s.ack}
	case *redis.ClusterClient:
		if c == nil {
			return nil, errNil
		}
		inspect(set.log, set.timeout, optionsOfCluster(c.Options()))
		s.cluster = redis.NewClusterClient(privateCluster(c.Options(), set.timeout, poolSize))
		s.renewCluster = redis.NewClusterClient(privateCluster(c.Options(), set.timeout, renewalPool))
		s.nodes = make(map[string]*lanes)
		s.publish = "SPUBLISH"
	case *redis.Ring:
		return nil, fmt.Errorf("%w: a Ring spreads keys over unrelated servers by itself and may move them at any time; "+
			"use a Client, a FailoverClient or a ClusterClient", core.ErrConfig)
	case nil:
		return nil, errNil
	default:
		return nil, fmt.Errorf("%w: unknown client %T; use *redis.Client (also of NewFailoverClient) or *redis.ClusterClient",
			core.ErrConfig, rdb)
	}
	s.hub = newHub(s)
	return s, nil
}

var errNil = fmt.Errorf("%w: the redis client is nil; redis.NewUniversalClient makes one", core.ErrConfig)

// Close closes the store's connections. Requests under way fail. The client
// that was given to New stays open.
func (s *Store) Close() error {
	if s.shut.Swap(true) {
		return nil
	}
	s.hub.close()
	s.mu.Lock()
	all := []*lanes{}
	if s.direct != nil {
		all = append(all, s.direct)
	}
	for _, q := range s.nodes {
		all = append(all, q)
	}
	s.mu.Unlock()
	for _, q := range all {
		q.close()
	}
	if s.cluster != nil {
		return errors.Join(s.cluster.Close(), s.renewCluster.Close())
	}
	return errors.Join(s.single.Close(), s.renewSingle.Close())
}

// Acquire implements core.Store.
func (s *Store) Acquire(ctx context.Context, ask core.AcquireRequest) (core.Reply, error) {
	r := &acquireRequest{ask: ask}
	lock := s.names.lock(ask.Key)
	r.keys[0], r.keys[1] = lock, fenceOf(lock)
	r.text[0], r.text[1] = milliseconds(ask.TTL), milliseconds(ask.TTL+fenceTime)
	// Pointers, since a string in an interface is an allocation.
	r.values = [11]any{
		3: &r.keys[0], 4: &r.keys[1],
		5: &r.ask.Owner, 6: &r.text[0], 7: &r.text[1], 8: &r.ask.Rest, 9: &r.ask.Waiter, 10: maxList,
	}
	r.request = request{
		store: s, script: acquireScript, nkeys: 2, args: r.values[:], lock: lock, write: true,
		deadline: ask.Deadline, done: make(chan struct{}, 1), late: func() { ask.Late(r.reply()) },
	}
	r.start()
	if !r.wait(ctx, ask.Deadline) {
		if ctx.Err() != nil {
			return core.Reply{}, fmt.Errorf("%w: %w", core.ErrPending, context.Cause(ctx))
		}
		return core.Reply{}, core.ErrPending
	}
	return r.reply()
}

// Release implements core.Store.
func (s *Store) Release(ctx context.Context, ask core.ReleaseRequest) error {
	r := &releaseRequest{ask: ask}
	lock := s.names.lock(ask.Key)
	r.names = [3]string{lock, channelOf(lock), ""}
	r.request = request{
		store: s, script: releaseScript, nkeys: 1, lock: lock, deadline: ask.Deadline, stubborn: true,
		done: make(chan struct{}, 1),
	}
	if ask.Remember {
		r.nkeys = 2
		r.names[2] = fenceOf(lock)
		r.text[0], r.text[1] = strconv.FormatInt(ask.Token, 10), milliseconds(ask.TTL+fenceTime)
		r.values = [11]any{
			3: &r.names[0], 4: &r.names[2],
			5: &r.ask.Owner, 6: &r.names[1], 7: &s.publish, 8: &r.ask.Waiter, 9: &r.text[0], 10: &r.text[1],
		}
		r.args = r.values[:]
	} else {
		r.values = [11]any{3: &r.names[0], 4: &r.ask.Owner, 5: &r.names[1], 6: &s.publish, 7: &r.ask.Waiter}
		r.args = r.values[:8]
	}
	s.startTogether(ctx, &r.request)
	r.wait(context.Background(), time.Time{}) // the request ends by its own bounds
	if r.err != nil {
		return wrap(r.err)
	}
	n, err := r.integer()
	switch {
	case err != nil:
		return wrap(err)
	case n <= 0 && !r.ambiguous:
		return notOwner(n)
	case n == 2 && !s.mute.Swap(true):
		s.log.Warn("interlock: Redis refused to announce a release: waiting processes find it late, by asking; " +
			"the user of the connection needs PUBLISH (on a Cluster SPUBLISH) on " + s.names.prefix + ":*")
	}
	// "Not the owner" after a try whose reply was lost: that try released it.
	return nil
}

// notOwner is the error for what renew.lua and release.lua answer to somebody who
// does not hold the lock.
func notOwner(n int64) error {
	if n < 0 {
		return core.ErrTakenOver
	}
	return core.ErrDeleted
}

// Watch implements core.Store.
func (s *Store) Watch(key string, since time.Time, wake func(core.Signal)) (stop func()) {
	return s.hub.watch(channelOf(s.names.lock(key)), since, wake)
}

// Renew implements core.Store. Leases on different servers go out in parallel,
// those on one in pipelines.
func (s *Store) Renew(ctx context.Context, batch []core.Renewal, done func(i int, contended bool, err error)) {
	if len(batch) > 0 && batch[0].Asked {
		s.renewAsked(ctx, batch, done)
		return
	}
	if s.single != nil {
		s.renewOn(ctx, s.renewSingle, batch, nil, done)
		return
	}
	byNode := map[*redis.Client][]int{}
	for i, b := range batch {
		node, err := s.renewCluster.MasterForKey(ctx, s.names.lock(b.Key))
		if err != nil {
			done(i, false, wrap(err))
			s.reload()
			continue
		}
		byNode[node] = append(byNode[node], i)
	}
	var wg sync.WaitGroup
	for node, indices := range byNode {
		wg.Go(func() { s.renewOn(ctx, node, batch, indices, done) })
	}
	wg.Wait()
}

// renewAsked renews for a caller, by the lanes.
func (s *Store) renewAsked(ctx context.Context, batch []core.Renewal, done func(int, bool, error)) {
	requests := make([]*request, len(batch))
	deadline, _ := ctx.Deadline()
	for i, b := range batch {
		lock, ms := s.names.lock(b.Key), "0"
		if b.TTL > 0 {
			ms = milliseconds(b.TTL)
		}
		requests[i] = &request{
			store: s, script: renewScript, nkeys: 1, args: []any{nil, nil, nil, &lock, &b.Owner, &ms}, lock: lock,
			deadline: deadline, done: make(chan struct{}, 1),
		}
		requests[i].start()
	}
	for i, r := range requests {
		if !r.wait(ctx, time.Time{}) {
			done(i, false, fmt.Errorf("%w: no answer in time", core.ErrUnavailable))
			continue
		}
		if r.err != nil {
			done(i, false, wrap(r.err))
			continue
		}
		switch n, err := r.integer(); {
		case err != nil:
			done(i, false, wrap(err))
		case n <= 0:
			done(i, false, notOwner(n))
		default:
			done(i, n == 2, nil)
		}
	}
}

// renewOn renews on one server the leases with these indices; nil is all.
func (s *Store) renewOn(
	ctx context.Context, node *redis.Client, batch []core.Renewal, indices []int, done func(int, bool, error),
) {
	n := len(indices)
	if indices == nil {
		n = len(batch)
	}
	index := func(k int) int {
		if indices == nil {
			return k
		}
		return indices[k]
	}
	pipe := node.Pipeline()
	cmds := make([]command, 0, min(n, maxBatch))
	for from := 0; from < n; from += maxBatch {
		to := min(from+maxBatch, n)
		cmds = cmds[:0]
		for k := from; k < to; k++ {
			cmd := s.renewal(ctx, batch[index(k)], false)
			cmds = append(cmds, cmd)
			_ = pipe.Process(ctx, cmd)
		}
		var wait *redis.IntCmd
		if s.ack.renewals {
			wait = s.ack.ask(ctx, pipe)
		}
		_, failure := pipe.Exec(ctx)
		for k := from; k < to; k++ {
			cmd := cmds[k-from]
			err := cmd.Err()
			if err == nil && failure != nil && cmd.Val() == nil {
				err = failure
			}
			if n, _ := cmd.Val().(int64); err == nil && n > 0 && s.ack.renewals && !s.ack.given(wait) {
				done(index(k), n == 2, core.ErrNotReplicated)
				continue
			}
			s.renewed(ctx, node, batch[index(k)], cmd, err, func(contended bool, err error) {
				done(index(k), contended, err)
			})
		}
	}
}

// renewal makes the command of one renewal.
func (s *Store) renewal(ctx context.Context, b core.Renewal, full bool) command {
	lock, ms := s.names.lock(b.Key), "0"
	if b.TTL > 0 {
		ms = milliseconds(b.TTL)
	}
	owner := b.Owner
	return renewScript.evalWith(ctx, full, 1, []any{nil, nil, nil, &lock, &owner, &ms})
}

// renewed takes the outcome of one renewal, after another try where the server
// had not executed it.
func (s *Store) renewed(
	ctx context.Context, node redis.Cmdable, b core.Renewal, cmd command, err error, done func(bool, error),
) {
	if err != nil {
		switch fateOf(err) {
		case noScript:
			cmd = s.renewal(ctx, b, true)
			err = node.(interface {
				Process(context.Context, redis.Cmder) error
			}).Process(ctx, cmd)
		case elsewhere:
			cmd = s.renewal(ctx, b, true)
			err = s.renewCluster.Process(ctx, cmd)
		case unknown, unsent, notReady:
			s.reload()
		case refused:
		}
	}
	if err != nil {
		done(false, wrap(err))
		return
	}
	n, _ := cmd.Val().(int64)
	if n <= 0 {
		done(false, notOwner(n))
		return
	}
	done(n == 2, nil)
}

// lanesFor returns the lanes to the server that has the key.
func (s *Store) lanesFor(lock string) (*lanes, error) {
	if s.direct != nil {
		return s.direct, nil
	}
	node, err := s.cluster.MasterForKey(context.Background(), lock)
	if err != nil {
		return nil, err
	}
	s.routed.Store(true)
	addr := node.Options().Addr
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.nodes[addr]
	if q == nil || q.client != node { // new, or forgotten and found again by go-redis
		q = &lanes{client: node, ack: s.ack, closed: s.shut.Load()}
		s.nodes[addr] = q
	}
	return q, nil
}

// reload has the cluster's topology asked for again, after an error that a
// change of it may have caused. go-redis does it by itself once a minute.
func (s *Store) reload() {
	if s.cluster == nil || s.shut.Load() {
		return
	}
	now, last := time.Now().UnixNano(), s.reloaded.Load()
	if now-last < int64(reloadEvery) || !s.reloaded.CompareAndSwap(last, now) {
		return
	}
	go func() {
		s.cluster.ReloadState(context.Background())
		s.renewCluster.ReloadState(context.Background())
	}()
}

// milliseconds is how Redis wants a duration; a part of one counts as a whole,
// since no lease may be zero.
func milliseconds(d time.Duration) string {
	return strconv.FormatInt(int64((d+time.Millisecond-1)/time.Millisecond), 10)
}

var _ core.Store = (*Store)(nil)
