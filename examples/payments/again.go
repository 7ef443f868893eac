package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/interlock-go/interlock/core/reason"
)

const (
	// patience is how long a client of the demonstration sends a request again that was
	// not answered for good. On a busy machine Redis may not answer in time for a while.
	patience = time.Minute
	// The pause between two tries doubles from the first to the last.
	firstPause, lastPause = 10 * time.Millisecond, 2 * time.Second
)

// unreached reports whether the bank could not reach its Redis in time. The request had
// no effect: the client may send it again.
func (r reply) unreached() bool {
	return r.reason == string(reason.Unavailable) || r.reason == "ledger-unavailable"
}

// unclear reports whether the answer to a payment does not say what became of it, or
// whether there was no answer. The idempotency key makes it safe to send it again.
func (r reply) unclear() bool {
	return r.silent || r.unreached() || r.reason == string(reason.NoRecord) || r.reason == string(reason.RolledBack)
}

// refused reports whether the request was not carried out, since another one was.
func (r reply) refused() bool {
	return r.reason == string(reason.Held) || r.reason == string(reason.InFlight)
}

var errLate = errors.New("not sent: it is too late")

// before sends a request, but not after the given time.
func before(until time.Time, request func() reply) reply {
	if time.Now().Before(until) {
		return request()
	}
	return reply{err: errLate, silent: true}
}

// persist sends a request while its answer asks for it, with longer and longer pauses
// between the tries, and not after the given time. It returns the last answer.
func persist(ctx context.Context, until time.Time, request func() reply, again func(reply) bool) reply {
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		a := before(until, request)
		wait := pause/2 + rand.N(pause) // clients that were refused together come back apart
		if !again(a) || time.Until(until) < wait || !sleep(ctx, wait) {
			return a
		}
	}
}

// settled sends a request that is not idempotent: again only if it had no effect.
func settled(ctx context.Context, request func() reply) reply {
	return persist(ctx, time.Now().Add(patience), request, reply.unreached)
}

// sleep reports whether ctx left it the time.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}
