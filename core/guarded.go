package core

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/interlock-go/interlock/core/internal/carrier"
)

// guarded is a request under a guard, as the context that its leases derive from. A
// loss reads the fields of its report there, and an adapter notes there that the
// request is answered. It is made only where an option needs it.
type guarded struct {
	context.Context
	route     string
	principal Hashed
	answered  atomic.Bool // read when a loss is reported

	bypassed bool      // without a lock, since the guard fails open
	admitted *admitted // by PerPrincipal; nil without a limit
	check    bool      // CheckAnswer
	lease    *Lease    // set before the handler runs
	lost     error     // why CheckAnswer held the answer back
}

// Value implements context.Context.
func (v *guarded) Value(key any) any {
	if key == carrier.Gate {
		return v
	}
	return v.Context.Value(key)
}

// guardedOf returns the innermost guarded request that ctx belongs to, or nil.
func guardedOf(ctx context.Context) *guarded {
	v, _ := carrier.Value(ctx, carrier.Gate).(*guarded)
	return v
}

// tracking is set by the first guard that makes a guarded.
var tracking atomic.Bool

// noteRequest notes the guarded request of a lease that is being made. A report of a loss
// needs it, and must not search for it: the values of a context are code of others, which
// could keep the goroutine that ends leases.
func (lease *Lease) noteRequest() {
	if !tracking.Load() {
		return
	}
	if v := guardedOf(lease.parent); v != nil {
		lease.needMore().request = v
	}
}

// Begin notes that the handler begins an answer that cannot be taken back, and reports whether
// the answer may leave. success says whether it is an answer of success.
func (v *guarded) Begin(success bool) bool {
	if success && v.check && v.confirm() != nil {
		return false
	}
	v.answered.Store(true)
	return true
}

// confirm asks the store whether the lock is still held, and returns why not. A store
// that does not answer is no loss while the lease is good by our clock. A second call
// returns the same result as the first, since the answer was held back because of it.
func (v *guarded) confirm() error {
	if v.lease == nil || v.lost != nil {
		return v.lost
	}
	_ = v.lease.Check(v.lease.Context()) // Err below returns the result
	if err := v.lease.Err(); !errors.Is(err, ErrReleased) {
		v.lost = err
	}
	return v.lost
}
