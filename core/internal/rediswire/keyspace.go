package rediswire

import (
	"context"
	"crypto/rand"
	_ "embed"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/logs"
)

// This file finds out whether one server has all keys. Only there may requests share a call
// of a script. A proxy that distributes keys over several servers routes a call by its first
// key alone (Envoy, Twemproxy, Codis, dynomite), and the server of that key would carry out
// the parts for the others too. No answer of such a proxy shows that it is a proxy.

//go:embed lua/probe.lua
var probeSource string

const (
	// probed is how many keys a probe compares with its first one. One probe in 65,536
	// takes two servers with half of the keys each for one server. Then the answers to
	// renewals and releases show the error (see look).
	probed = 16
	// probeTime is after how long the key of a probe ends that could not be deleted.
	probeTime = 10 * time.Second
)

// Knowledge about the servers at an address.
const (
	unproven int32 = iota // nothing yet: no call is shared
	whole                 // one server has all keys
	slotted               // a call must not have keys of several slots
	divided               // several servers have the keys, and say nothing
)

var errDivided = errors.New("several servers have the keys behind this address, as behind a proxy that distributes them")

// keyspace is the knowledge of a store about the servers at its address. It is nil for a Cluster:
// a client for a Cluster knows its servers.
type keyspace struct {
	store *Store
	one   bool // the address has to lead to one server

	state   atomic.Int32
	looking atomic.Bool
	again   logs.Throttle // of looking, without an answer that asks for it
}

func newKeyspace(s *Store, set *Config) *keyspace {
	k := &keyspace{store: s, one: set.greet != nil}
	if set.Sharded {
		k.state.Store(divided)
	}
	return k
}

// shared reports whether requests may share calls. Where that is not known, and would matter
// for a batch of more than one request, the store looks.
func (k *keyspace) shared() bool {
	if k == nil {
		return false
	}
	state := k.state.Load()
	if state == unproven && k.again.Count(time.Now()) > 0 {
		k.look(k.names()...)
	}
	return state == whole
}

// names are keys for the routing of probes. Nothing else uses them.
func (k *keyspace) names() (all []string) {
	text := rand.Text()
	for i := range probed + 2 {
		all = append(all, k.store.names.prefix+":probe:{"+text+strconv.Itoa(i)+"}")
	}
	return all
}

// probe makes a probe of a new connection; nil if there is nothing to find out.
func (k *keyspace) probe() *probe {
	if k == nil {
		return nil
	}
	if state := k.state.Load(); !k.one && state != unproven && state != whole {
		return nil
	}
	return newProbe(k.names())
}

// look has the store find out, while requests go on, whether some keys are on one
// server.
func (k *keyspace) look(keys ...string) {
	if k.looking.Swap(true) {
		return
	}
	go func() {
		defer k.looking.Store(false)
		ctx, cancel := context.WithTimeout(k.store.dialer.ctx, probeTime)
		defer cancel()
		p := newProbe(append(keys, k.names()[0]))
		p.send(ctx, k.store.requests.single)
		_ = k.learn(p) // no call goes over this connection
	}()
}

// findsSeveral reports whether a probe of a server finds several.
func (k *keyspace) findsSeveral(ctx context.Context, node *redis.Client) bool {
	if k == nil {
		return false
	}
	p := newProbe(k.names())
	p.send(ctx, node)
	return p.outcome() == divided
}

// learn takes the outcome of a probe. It returns an error if the connection of the probe must
// not be used.
func (k *keyspace) learn(p *probe) error {
	found := unproven
	if p != nil {
		found = p.outcome()
	}
	switch found {
	case unproven:
		return nil
	case whole:
		k.state.CompareAndSwap(unproven, whole)
		return nil
	}
	before := k.state.Swap(found)
	if found == divided && before != divided {
		k.store.log.Warn("interlock: " + errDivided.Error() +
			": from now on each lock has a call of its own; see docs/managed.md on proxies")
	}
	if found == divided && k.one {
		return fmt.Errorf("meeting the server: %w", fmt.Errorf("%w: %w", driver.ErrConfig, errDivided))
	}
	return nil
}

// probe writes a key on the server of the first of some keys, and looks for it on the servers
// of the others.
type probe struct {
	key    string
	routes []string
	cmds   []*redis.Cmd
}

// newProbe makes a probe of some keys. The last one is the key that it writes.
func newProbe(keys []string) *probe {
	last := len(keys) - 1
	return &probe{key: keys[last], routes: keys[:last]}
}

// add puts the commands of the probe into a pipeline.
func (p *probe) add(ctx context.Context, pipe redis.Pipeliner) {
	if p == nil {
		return
	}
	on := func(route string, command ...any) {
		p.cmds = append(p.cmds, pipe.Eval(ctx, probeSource, []string{route, p.key}, command...))
	}
	on(p.routes[0], "SET", "1", "PX", probeTime.Milliseconds())
	for _, route := range p.routes[1:] {
		on(route, "EXISTS")
	}
	on(p.routes[0], "DEL")
}

// send sends the probe by itself. The outcome reports the result.
func (p *probe) send(ctx context.Context, by *redis.Client) {
	_, _ = by.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		p.add(ctx, pipe)
		return nil
	})
}

// outcome reads the replies. They say nothing if the key could not be written, or is gone.
func (p *probe) outcome() int32 {
	last := len(p.cmds) - 1
	for _, c := range p.cmds {
		if err := c.Err(); err != nil {
			if IsReply(err) && ofSeveralSlots(err) {
				return slotted
			}
			return unproven
		}
	}
	if p.cmds[last].Val() != any(int64(1)) {
		return unproven
	}
	for _, c := range p.cmds[1:last] {
		switch c.Val() {
		case any(int64(1)):
		case any(int64(0)):
			return divided
		default:
			return unproven
		}
	}
	return whole
}

// deniesOwner reports whether a script has answered that the owner does not hold the lock.
func (r *Request) deniesOwner() bool {
	n, ok := r.Val.(int64)
	return ok && n <= 0
}
