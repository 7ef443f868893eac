package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/ident"
	"github.com/interlock-go/interlock/core/internal/rediswire"
)

// releaseWithin bounds a release, with all its tries.
const releaseWithin = 10 * time.Second

// Release takes a lock, or one place of it, from the holder with the token, and wakes the
// processes that wait, in their order, as a release by the holder does. It returns that holder.
// No other grant is touched: the token leads to an owner, which no other grant ever has, and the
// script that releases compares it.
//
// The holder is not asked. A holder that is [Holder.Attentive] finds the loss out (core.OnLost,
// with the reason observe.LossRevoked) within milliseconds, and its context ends. Any other
// finds it out at its next renewal, which with the default lease is up to 10 s later, or when
// it asks the store (core.Commit, core.Lease.Check). Until then its handler works on, at the
// same time as the next holder. Use it for a process that is known to be dead or stuck, or that
// only makes fenced writes. Tokens still grow: the fence stays. The logs of this process and of
// the holder's then name who released the lock: the user and host of this process, or [By].
//
// The errors are [ErrNoGrant], [ErrVoted], and two errors of the store:
// [driver.ErrUnavailable], which also says which right is missing, and [driver.ErrNotReady].
// After an error that matches [ErrOutcomeUnknown] it is not known whether the lock was released; after
// any other error it was not.
func (f *Fleet) Release(ctx context.Context, key string, token int64) (Holder, error) {
	l, err := f.Inspect(ctx, key)
	if err != nil {
		return Holder{}, err
	}
	h, ask, err := l.grant(token)
	switch {
	case err != nil:
		return Holder{}, err
	case l.voted:
		return Holder{}, fmt.Errorf("%w: %q", ErrVoted, key)
	}
	ask.Revoked, ask.By = h.revoked(), operator(ctx)
	// The store compares the owner, which no other grant ever has.
	if _, err := f.store.Release(ctx, ask); errors.Is(err, driver.ErrNotOwner) {
		return Holder{}, fmt.Errorf("%w: %q, token %d", ErrNoGrant, key, token)
	} else if err != nil {
		return Holder{}, outcome(err)
	}
	f.log.InfoContext(ctx, "interlock: an operator has released a lock", "key_hash", ident.Hash(key), "kind", l.Kind,
		"token", token, "owner", h.Owner, "host", h.Locker.Host, "pid", h.Locker.PID, "service", h.Locker.Service, "operator", ask.By)
	return h, nil
}

// revoked is the life of the note about a release by an operator: for as long as the holder may ask.
func (h *Holder) revoked() time.Duration {
	left := max(h.Left, 0)
	if h.HandedOver {
		return left + time.Hour // as the store knows whether a ticket was taken over
	}
	return left + time.Minute
}

type byKey struct{}

// By returns a context with which Release and ReleaseKept add to the name of this process, in the logs, the
// user who asked it for the release. A server of pages has users of its own.
func By(ctx context.Context, user string) context.Context {
	return context.WithValue(ctx, byKey{}, user)
}

// operator names the user, host and number of this process, and the user who asked it ([By]).
func operator(ctx context.Context) string {
	user := cmp.Or(os.Getenv("SUDO_USER"), os.Getenv("USER"), os.Getenv("USERNAME"), "unknown")
	host, _ := os.Hostname()
	name := fmt.Sprintf("%s@%s, process %d", user, host, os.Getpid())
	if asked, _ := ctx.Value(byKey{}).(string); asked != "" {
		name += ", asked by " + asked
	}
	return name
}

// grant finds the holder with a token, and makes the request that takes the lock from it. Stores do
// not know the allowed number of places: with 0 they call one waiting locker to the free place.
func (l *Lock) grant(token int64) (Holder, driver.ReleaseRequest, error) {
	for _, h := range l.Holders {
		if h.Token != token {
			continue
		}
		ask := driver.ReleaseRequest{
			Key: l.Key, Owner: h.Owner, Token: max(token, l.Fence), TTL: max(h.Left, 0), Deadline: time.Now().Add(releaseWithin),
		}
		if l.Kind == Places {
			ask.Kind, ask.Token = driver.Permit, token // the script on Redis compares it with the fence
		}
		return h, ask, nil
	}
	return Holder{}, driver.ReleaseRequest{}, fmt.Errorf("%w: %q, token %d", ErrNoGrant, l.Key, token)
}

// outcome adds [ErrOutcomeUnknown] to the error of a release, unless the server has refused the release.
func outcome(err error) error {
	var coded interface{ SQLState() string }
	switch {
	case err == nil, rediswire.IsReply(err), errors.Is(err, driver.ErrRefused), errors.As(err, &coded):
		return err
	}
	return fmt.Errorf("%w: %w", ErrOutcomeUnknown, err)
}

// ReleaseKept frees a lock that is kept for waiting processes ([Lock.Kept]), and has all processes
// that wait ask for it at once: the order of their turns begins anew. It returns the lock as it
// was. No holder loses anything: if a process was granted the lock meanwhile, the error is
// [ErrNotKept]. The other errors are the same as for [Fleet.Release], and [ErrNotServed] on any other
// store than Redis, which keeps a lock for some seconds at most.
func (f *Fleet) ReleaseKept(ctx context.Context, key string) (Lock, error) {
	keeper, ok := f.store.(interface {
		Unkeep(ctx context.Context, key string, token int64) (freed bool, err error)
	})
	if !ok {
		return Lock{}, fmt.Errorf("%w: it keeps a lock for waiting processes for 4 s at most", ErrNotServed)
	}
	ctx, cancel := context.WithTimeout(ctx, releaseWithin)
	defer cancel()
	l, err := f.Inspect(ctx, key)
	if err != nil {
		return Lock{}, err
	}
	freed := false
	if l.Kept > 0 {
		freed, err = keeper.Unkeep(ctx, key, l.Fence)
		err = outcome(err)
	}
	switch {
	case err != nil:
		return Lock{}, err
	case !freed:
		return Lock{}, fmt.Errorf("%w: %q", ErrNotKept, key)
	}
	f.log.InfoContext(ctx, "interlock: an operator has freed a lock that was kept for waiting processes",
		"key_hash", ident.Hash(key), "operator", operator(ctx))
	return l, nil
}
