package core

import (
	"context"
	"sync/atomic"

	"github.com/interlock-go/interlock/core/internal/carrier"
)

// brought is a ticket that came with a message.
type brought struct {
	ticket *ticket
	used   atomic.Bool
}

// WithTicket returns a context for the consumer of a message that came with the ticket of a lock. A
// rule that needs this one lock goes on with it in place of locking, as [Locker.TakeOver] does with
// [OrLock]: a message that is delivered again waits for the lock in turn. The first such rule
// under the context uses the ticket. Any other rule locks as without the ticket. Consumers of this
// module call it (package once).
func WithTicket(ctx context.Context, t Ticket) context.Context {
	if t.t == nil {
		return ctx
	}
	return context.WithValue(ctx, carrier.Ticket, &brought{ticket: t.t})
}

// broughtFor returns the ticket of ctx for a lock, nil if there is none. It is returned once.
func broughtFor(ctx context.Context, keys []string, c *config) *ticket {
	b, _ := ctx.Value(carrier.Ticket).(*brought)
	if b == nil || len(keys) != 1 || keys[0] != b.ticket.key || c.terms.Kind != b.ticket.kind() ||
		b.ticket.permits > 0 && c.terms.AtMost != b.ticket.permits || !b.used.CompareAndSwap(false, true) {
		return nil
	}
	return b.ticket
}

// goOn takes the lock of a ticket for a rule.
func (l *Locker) goOn(ctx context.Context, t *ticket, c *config) (*Lease, error) {
	if err := l.keeps(t); err != nil {
		return nil, err
	}
	return l.takeOverOrLock(ctx, t, c)
}
