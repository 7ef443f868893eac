package core

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/carrier"
	"github.com/interlock-go/interlock/core/internal/lock"
)

// HeldHeader names a header field, in gRPC a field of the metadata. A client lists in it the
// locks that the client's own callers hold. The clients of this module send it ([HeldFor]), and
// a guard reads it: a request for a lock that its caller holds would wait for its own end,
// and is refused at once ([ErrHeldByCaller]). So is a request for a permit if its callers hold all of
// them.
//
// Services in between pass the field on: every [Guard] and every idempotent endpoint does, and
// grpclock, connectlock and mcplock do for all methods of a server that they protect. A service on
// net/http that has neither gets the rule [Relay].
//
// The callers are taken to wait for the answer. A goroutine that goes on after the answer is
// refused like the request that it came from. It takes its locks under a context without the
// values of the request.
//
// The field grants nothing. A forged one can only have its own request refused, and a
// malformed one is ignored. The guard compares it with the holder that the store names, so a
// lock of the same key on another store, or under another prefix, is not meant. A proxy at
// the edge can delete the field: proxy_set_header Interlock-Held ""; in nginx.
const HeldHeader = "Interlock-Held"

const (
	maxCallers = 16 // holds in a field
	callerSize = 8  // bytes of a hash
)

// callers are hashes of owners: the callers of a request hold locks under these owners.
type callers []uint64

type callersKey struct{}

// WithHeld returns a context for the handler of a request that came with these values of
// [HeldHeader]: [HeldFor] has them too. It is for adapters of frameworks; guards and idempotent
// endpoints call it. Without a value, and for a malformed one, it returns ctx.
func WithHeld(ctx context.Context, field ...string) context.Context {
	ctx, _ = withHeld(ctx, field)
	return ctx
}

func withHeld(ctx context.Context, field []string) (context.Context, callers) {
	held := parseCallers(field)
	if held == nil {
		return ctx, nil
	}
	if carrier.Value(ctx, carrier.Stuck) == nil {
		ctx = context.WithValue(ctx, carrier.Stuck, new(atomic.Bool))
	}
	return context.WithValue(ctx, callersKey{}, held), held
}

// HeldFor returns the value of [HeldHeader] for a request that is sent under ctx: hashes of
// the holds of the leases of ctx, and the hashes that came with the request of ctx. If there
// are more than 16, it has the innermost. It is empty outside of a lock.
func HeldFor(ctx context.Context) string {
	var all callers
	for lease := LeaseFromContext(ctx); lease != nil; lease = lease.outer() {
		for _, w := range lease.locks() {
			if owner := lease.config.locker.locks.Owner(w); owner != "" {
				all = append(all, callerOf(owner))
			}
		}
	}
	inherited, _ := carrier.Value(ctx, callersKey{}).(callers)
	all = append(all, inherited...)
	if len(all) == 0 {
		return ""
	}
	var b []byte
	for i, c := range all {
		if !slices.Contains(all[:i], c) && len(b) < maxCallers*callerSize {
			b = binary.BigEndian.AppendUint64(b, c)
		}
	}
	return base64.RawURLEncoding.EncodeToString(b)
}

// callerOf returns the hash of an owner. Owners are random, and are never used again.
func callerOf(owner string) uint64 {
	sum := sha256.Sum256([]byte("interlock caller\n" + owner))
	return binary.BigEndian.Uint64(sum[:])
}

// parseCallers returns what a field says, nil for a field that is missing or malformed.
func parseCallers(values []string) callers {
	if len(values) != 1 || len(values[0]) > base64.RawURLEncoding.EncodedLen(maxCallers*callerSize) {
		return nil
	}
	b, err := base64.RawURLEncoding.DecodeString(values[0])
	if err != nil || len(b)%callerSize != 0 {
		return nil
	}
	var all callers
	for ; len(b) > 0; b = b[callerSize:] {
		all = append(all, binary.BigEndian.Uint64(b))
	}
	return all
}

// bar reports whether a request waits for its own callers. atMost is its number of permits. Where
// all permits are taken, a permit of another caller may come free.
func (c callers) bar(owners lock.Owners, atMost int) bool {
	theirs := 0
	for owner := range strings.SplitSeq(owners.List, ",") {
		if owner != "" && slices.Contains(c, callerOf(owner)) {
			theirs++
		}
	}
	if owners.Full {
		return atMost > 0 && theirs >= atMost
	}
	return theirs > 0
}

// chains are the requests that wait for a lock while their callers hold locks.
type chains struct {
	n       atomic.Int32 // how many there are; read without the mutex
	mu      sync.Mutex
	waiting map[string][]*chain // by key
}

// chain is one request that waits.
type chain struct {
	of     *chains
	held   callers
	terms  lock.Terms
	keys   []string
	cancel context.CancelCauseFunc
	closed bool // the caller holds a key: the request would wait for itself
}

// join returns the context for the waits of a request. It ends with [ErrHeldByCaller]
// when the caller of the request holds a lock that the request waits for. The function
// leave must be called when the request waits no more. It reports whether the context
// has ended for that reason.
func (l *Locker) join(ctx context.Context, keys []string, terms lock.Terms, held callers) (joined context.Context, leave func() bool) {
	joined, cancel := context.WithCancelCause(ctx)
	c := &chain{of: &l.chains, held: held, terms: terms, keys: keys, cancel: cancel}
	l.chains.mu.Lock()
	if l.chains.waiting == nil {
		l.chains.waiting = make(map[string][]*chain)
	}
	for _, key := range keys {
		l.chains.waiting[key] = append(l.chains.waiting[key], c)
	}
	l.chains.n.Add(1)
	l.chains.mu.Unlock()
	// A refusal from here on finds the request in the list. The lock knows the owners of an
	// earlier refusal, and HeldBy reads them after the request was listed: neither is missed.
	for _, key := range keys {
		if held.bar(l.locks.HeldBy(key, terms.Kind), terms.AtMost) {
			l.chains.mu.Lock()
			c.close()
			l.chains.mu.Unlock()
			break
		}
	}
	return joined, c.leave
}

// close ends the wait. Called with the mutex of the chains held.
func (c *chain) close() {
	c.closed = true
	c.cancel(ErrHeldByCaller)
}

// leave takes the request out of the list.
func (c *chain) leave() (closed bool) {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	for _, key := range c.keys {
		rest := slices.DeleteFunc(c.of.waiting[key], func(other *chain) bool { return other == c })
		if c.of.waiting[key] = rest; len(rest) == 0 {
			delete(c.of.waiting, key)
		}
	}
	c.of.n.Add(-1)
	return c.closed
}

// refused ends the waits of requests for a key if their callers are among its owners. The
// table calls it after each refusal of the store, for any caller of this process. A refused
// place says nothing about exclusive requests, and the other way round.
func (c *chains) refused(key string, kind driver.Kind, owners lock.Owners) {
	if c.n.Load() == 0 || owners.List == "" {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, waiting := range c.waiting[key] {
		if waiting.terms.Kind.Place() == kind.Place() && waiting.held.bar(owners, waiting.terms.AtMost) {
			waiting.close()
		}
	}
}
