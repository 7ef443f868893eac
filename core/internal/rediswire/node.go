package rediswire

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/clock"
)

//go:embed lua/propose.lua
var proposeSource string

//go:embed lua/withdraw.lua
var withdrawSource string

//go:embed lua/mark.lua
var markSource string

var (
	proposeScript  = NewScript(proposeSource)
	withdrawScript = NewScript(withdrawSource)
)

// Node is a server in a group of independent servers that vote on locks. It exists for
// package core/quorum, which asks a majority of them. It differs from a [Store] in three
// ways. A [Proposal], which names the fencing token, takes a lock. No method waits for an
// answer: a function receives it. Every connection identifies its server before it carries
// anything else.
//
// A Node is safe for concurrent use.
type Node struct {
	store *Store
	mark  string // the key
	met   func(Identity) error
}

// Identity is the identity that a server reports.
type Identity struct {
	// RunID is a random value that the server chooses at each start (INFO server,
	// run_id).
	RunID string
	// Clock is the server's time, in µs since 1970.
	Clock int64
	// Mark is what [Node.Mark] wrote last, or another process; empty if the server has
	// lost it, or never had it.
	Mark string
	// Asked is when the server was asked for all of that.
	Asked time.Time
}

// NewNode makes a [Node] from a client for a single server, or for a client for
// Sentinel. It copies the options of the client to make its own connections, and sends
// nothing. On each new connection the node calls met with the identity of the server,
// before the connection can carry a vote. If met returns an error, the node does not
// use the connection. met must be safe for concurrent use. For any other client NewNode
// returns [driver.ErrConfig].
func NewNode(rdb redis.UniversalClient, met func(Identity) error, set Config) (*Node, error) {
	c, ok := rdb.(*redis.Client)
	if !ok || c == nil {
		return nil, fmt.Errorf("%w: a node of a quorum is one server: use a *redis.Client that is not nil, not %T",
			driver.ErrConfig, rdb)
	}
	if set.Replicas > 0 {
		return nil, fmt.Errorf("%w: Replicas: a quorum asks masters, not their replicas", driver.ErrConfig)
	}
	n := &Node{met: met}
	set.greet, set.patience = n.greet, nodePatience
	store, err := Open(c, set)
	if err != nil {
		return nil, err
	}
	n.store, n.mark = store, store.names.mark()
	return n, nil
}

// greet asks a new connection where it leads, and loads the scripts on the way.
// A connection that does not say is none: what should have gone over it was
// never sent, which the error says by looking like a failed dial.
func (n *Node) greet(ctx context.Context, cn *redis.Conn) error {
	var said *saying
	_, err := cn.Pipelined(ctx, func(p redis.Pipeliner) error {
		p.ScriptLoad(ctx, proposeSource)
		p.ScriptLoad(ctx, withdrawSource)
		said = n.question(ctx, p)
		return nil
	})
	if err != nil && !IsReply(err) && !errors.Is(err, redis.Nil) {
		return unmet(err)
	}
	if err := n.hears(said); err != nil {
		return unmet(err)
	}
	return nil
}

// saying is the answer of a server to the question who it is.
type saying struct {
	info, mark *redis.StringCmd
	asked      time.Time
}

// question asks a server who it is. Both commands go over one connection, so that the
// answers are of one run of the server.
func (n *Node) question(ctx context.Context, p redis.Pipeliner) *saying {
	return &saying{p.Info(ctx, "server"), p.Get(ctx, n.mark), time.Now()}
}

// hears passes the answer on to the function met.
func (n *Node) hears(said *saying) error {
	mark, err := said.mark.Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return err
	}
	info, err := said.info.Result()
	if err != nil {
		return err
	}
	id, err := identityOf(info)
	if err != nil {
		return err
	}
	id.Mark, id.Asked = mark, said.asked
	return n.met(id)
}

// unmet wraps twice, since go-redis takes one wrapping off.
func unmet(err error) error {
	return fmt.Errorf("meeting the server: %w", &net.OpError{Op: "dial", Err: err})
}

// identityOf reads the answer to INFO server.
func identityOf(info string) (Identity, error) {
	var id Identity
	for line := range strings.Lines(info) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		switch name {
		case "run_id":
			id.RunID = value
		case "server_time_usec":
			id.Clock, _ = strconv.ParseInt(value, 10, 64)
		}
	}
	if id.RunID == "" {
		// Without it a restart cannot be seen, and then it must not vote.
		return id, fmt.Errorf("%w: %w", driver.ErrUnavailable, errors.New("INFO server says no run_id"))
	}
	return id, nil
}

// Addr returns the address of the server, for messages.
func (n *Node) Addr() string { return n.store.requests.single.Options().Addr }

// Meet asks the server for its identity and calls the met function of [NewNode] with
// it.
func (n *Node) Meet(ctx context.Context) error {
	var said *saying
	_, err := n.store.requests.single.Pipelined(ctx, func(p redis.Pipeliner) error {
		said = n.question(ctx, p)
		return nil
	})
	if err != nil && !errors.Is(err, redis.Nil) {
		return Wrap(err)
	}
	return Wrap(n.hears(said))
}

// Mark replaces the mark of the server, if the server still has the given mark, which may
// be empty. [Node.Meet] reports the result.
func (n *Node) Mark(ctx context.Context, from, to string) error {
	return Wrap(n.store.requests.single.Eval(ctx, markSource, []string{n.mark}, from, to).Err())
}

// Check is [Store.Check] for the node's server.
func (n *Node) Check(ctx context.Context) ([]string, error) { return n.store.Check(ctx) }

// Close closes the node's connections. Requests under way return errors.
func (n *Node) Close() error { return n.store.Close() }

// Confirmation asks a node to extend one lease.
type Confirmation struct {
	driver.Renewal
	// Ballot is the Token of the [Proposal] that won; zero if that is unknown. The node
	// raises its vote to it.
	Ballot int64
}

// Confirm is [Store.Renew] for the leases that owners have by vote. All leases of a node
// are such: what shares a call of the script has the same number of arguments.
func (n *Node) Confirm(ctx context.Context, batch []Confirmation, done func(i int, contended bool, err error)) {
	if len(batch) == 0 {
		return
	}
	n.store.renew(ctx, batch[0].Asked, len(batch), func(i int, r *Renewal) {
		c := &batch[i]
		r.Ask(renewScript, n.store.names.lock(c.Key), c.Owner, c.TTL)
		r.number(c.Ballot)
	}, done)
}

// Watch calls wake with the owner that gave the lock up and the list of waiters: a node announces
// each release to all who listen. Both are empty when the node may have missed a release.
func (n *Node) Watch(key string, since time.Time, wake func(owner string, next driver.Waiters)) (stop func()) {
	channel := n.store.names.channel(n.store.names.lock(key))
	return n.store.Subscribe(channel, since, func(message string) {
		owner, next, _ := strings.Cut(message, " ")
		wake(owner, driver.Waiters(next))
	})
}

// Proposal asks a node to take a lock for an owner under a fencing token.
type Proposal struct {
	Key, Owner string
	TTL        time.Duration
	// Keep is for how long the node remembers the token.
	Keep time.Duration
	// Token must be above every token that the node has seen for the key, also
	// above an earlier proposal of the same owner, which it replaces. Zero takes no
	// lock, and only asks.
	Token int64
	// Waiter has the meaning of [driver.AcquireRequest].
	Waiter driver.Waiter
	// Mark is the mark ([Identity]) without which the node does nothing.
	Mark string
	// Deadline is the time after which nothing is sent to the node.
	Deadline time.Time
	// Ends is the time after which the node does nothing, in µs since 1970 by its own
	// clock. A node that was stopped has such proposals before it when it runs again.
	Ends int64
}

// Vote is a node's answer to a [Proposal].
type Vote struct {
	// Granted is true if the owner holds the lock on this node.
	Granted bool
	// Token is the token of that hold. If Granted is false and Holder is empty, the
	// lock is free, the proposal was too low, and Token is the highest token that
	// the node has seen.
	Token int64
	// Holder is the owner that holds the lock on this node instead.
	Holder string
	// TTL is the rest of the holder's lease. It is negative if unknown.
	TTL time.Duration
	// Listed has the meaning of [driver.Reply].
	Listed bool
	// Clock is the node's time, in µs since 1970; zero if it did not answer.
	Clock int64
	// Ended is true if the proposal came to the node after Ends. Nothing was done.
	Ended bool
	// Unmarked is true if the node has another mark. Nothing was done.
	Unmarked bool
	// Unknown is true if the proposal may still be executed later, because its
	// answer did not arrive. It is not executed after Ends.
	Unknown bool
}

// Propose asks for a vote. It calls done exactly once, from any goroutine, at the
// latest when the node's timeout has passed.
func (n *Node) Propose(p Proposal, done func(Vote, error)) {
	r := &proposal{ask: p}
	r.names[0], r.names[1] = n.store.names.with(p.Key, fenceSuffix)
	r.ms = [2]int64{clock.Ceil(p.TTL, time.Millisecond), clock.Ceil(p.Keep, time.Millisecond)}
	r.Make(n.store, proposeScript, r.names[0], r.room[:]).Keys(&r.names[0], &r.names[1], &n.mark).
		Args(&r.ask.Owner, &r.ms[0], &r.ms[1], &r.ask.Token, (*string)(&r.ask.Waiter), &r.ask.Ends, &r.ask.Mark)
	r.Deadline, r.Asks = p.Deadline, true
	r.once = p.Token == 0 // it takes no lock: its sender asks anew
	r.Detach(func() { done(r.vote()) }).Start()
}

// proposal is a Proposal on its way, with room for its arguments.
type proposal struct {
	Request
	ask   Proposal
	names [2]string // lock, fence
	ms    [2]int64  // lease, fence's
	room  [callArgs + 10]any
}

// vote reads the script's reply.
func (r *proposal) vote() (Vote, error) {
	v := Vote{Unknown: r.Ambiguous}
	if r.Err != nil {
		return v, Wrap(r.Err)
	}
	list, _ := r.Val.([]any)
	switch n := numbers(list); {
	case len(list) == 3 && (n[0] == 1 || n[0] == 2) && n[2] > 0:
		v.Granted, v.Token, v.Clock = n[0] == 1, n[1], n[2]
		return v, nil
	case len(list) == 2 && (n[0] == 3 || n[0] == 4) && n[1] > 0:
		v.Ended, v.Unmarked, v.Clock = n[0] == 3, n[0] == 4, n[1]
		return v, nil
	case len(list) == 5 && n[0] == 0 && n[4] > 0:
		v.Holder, _ = list[1].(string)
		v.TTL = time.Duration(n[2]) * time.Millisecond // PTTL: -1 for a key without expiry
		v.Listed, v.Clock = n[3] == 1, n[4]
		return v, nil
	}
	v.Unknown = true // what that server has done is unknown
	return v, Wrap(ErrReply)
}

// numbers are the elements of a reply that are numbers, the others -1.
func numbers(list []any) (n [5]int64) {
	for i := range n {
		n[i] = -1
		if i < len(list) {
			if v, ok := list[i].(int64); ok {
				n[i] = v
			}
		}
	}
	return n
}

// Withdrawal is a request to give up what an owner holds on a node.
type Withdrawal struct {
	Key, Owner string
	// Token is the highest fencing token that the owner gave out; zero if none. The node
	// accepts no proposal up to it any more.
	Token int64
	// TTL is the length of the lock's lease, and Keep for how long the node remembers the
	// token.
	TTL, Keep time.Duration
	// Limit, unless zero, protects a lock that the owner holds by a proposal above it.
	Limit int64
	// Waiter has the meaning of [driver.ReleaseRequest].
	Waiter driver.Waiter
	// Quiet suppresses the announcement of the release.
	Quiet bool
	// Deadline is the time until which the node repeats a withdrawal that failed.
	Deadline time.Time
}

// Withdraw gives up a lock. It calls done exactly once, from any goroutine, with nil,
// [driver.ErrNotOwner] or the error of a request that failed.
func (n *Node) Withdraw(w Withdrawal, done func(waiting driver.Waiters, err error)) {
	r := &withdrawal{ask: w, publish: *n.store.Publish()}
	r.names[0], r.names[1] = n.store.names.with(w.Key, fenceSuffix)
	r.channel = n.store.names.channel(r.names[0])
	if w.Quiet {
		r.publish = ""
	}
	r.ms = clock.Ceil(w.Keep, time.Millisecond)
	r.Make(n.store, withdrawScript, r.names[0], r.room[:]).Keys(&r.names[0], &r.names[1]).
		Args(&r.ask.Owner, &r.ask.Token, &r.ms, &r.ask.Limit, (*string)(&r.ask.Waiter), &r.channel, &r.publish)
	r.Deadline, r.Stubborn = w.Deadline, true
	r.Detach(func() { done(r.outcome()) }).Start()
}

// withdrawal is a Withdrawal on its way, with room for its arguments.
type withdrawal struct {
	Request
	ask              Withdrawal
	names            [2]string // lock, fence
	channel, publish string
	ms               int64 // fence's
	room             [callArgs + 9]any
}

func (r *withdrawal) outcome() (waiting driver.Waiters, err error) {
	if r.Err != nil {
		return "", Wrap(r.Err)
	}
	if waiting, ok := listed(r.Val); ok {
		return waiting, nil
	}
	n, err := code(r.Val, 3)
	switch {
	case err != nil:
		return "", Wrap(err)
	case n == 0 && !r.Ambiguous:
		return "", driver.ErrNotOwner
	case n == 2:
		r.store.SayMute()
	}
	// "Not the owner" after an earlier try with a lost reply: that try gave it up.
	return "", nil
}
