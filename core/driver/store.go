package driver

import (
	"context"
	"time"
)

// Kind says which other owners can hold the lock at the same time.
type Kind uint8

const (
	// Exclusive is a holder that is alone.
	Exclusive Kind = iota
	// Shared is a holder together with any number of others. All of them keep an exclusive
	// holder out, and an exclusive holder keeps them out.
	Shared
	// Permit is a holder together with a limited number of others
	// ([AcquireRequest.AtMost]). An exclusive holder keeps them out, too.
	Permit
)

// Tokens is how many fencing tokens come with the grant of a [Permit]: its own, which
// is [Reply.Token], and the tokens that follow it. The lock hands the permit on in the
// process under the others.
const Tokens = 16

// Place reports whether the kind leaves room for other holders. The documents call
// such a hold a place.
func (k Kind) Place() bool { return k != Exclusive }

// Store keeps locks: one lock for each key, for the time of a lease. One exclusive
// owner holds it, or several owners that have places ([Kind]). All methods are safe
// for concurrent use. A store that can never serve a request, because it has no places
// or no leases of that length, answers it with an error that matches [ErrConfig] and no
// other error of this package; see also [Limited].
type Store interface {
	// Acquire makes one try to take a lock. It never waits for the holder.
	//
	// If another owner holds the lock, that is not an error: the [Reply] says so.
	// If the owner of the request holds it already, the try succeeds: its token is
	// the token that is stored with the lock, or a greater token, and the lease is not
	// shortened. Errors match [ErrUnavailable], [ErrNotReady], [ErrNotReplicated]
	// or [ErrKeyOccupied].
	//
	// For a [Permit] a locker has up to 64 requests of one key on their way at the same
	// time, with separate owners and separate outcomes. For the other kinds it has one.
	//
	// The store may send a request again that failed on the way, until
	// [AcquireRequest.Deadline]. When ctx ends, or the deadline passes, before the
	// outcome is known, Acquire returns at once an error that matches [ErrPending],
	// and later calls [AcquireRequest.Late] exactly once, from any goroutine, with the late
	// result. In every other case it never calls Late.
	Acquire(ctx context.Context, req AcquireRequest) (Reply, error)

	// Renew extends leases. It calls done exactly once for each lease, in any order
	// and from any goroutine, with the index of the lease and its outcome: nil,
	// [ErrNotOwner], or a failure on the way. contended says that other lockers
	// wait for the lock. Renew returns after the last call of done; when ctx ends,
	// that is soon. Leases on different servers do not delay each other.
	Renew(ctx context.Context, batch []Renewal, done func(i int, contended bool, err error))

	// Release gives the lock up if the owner holds it, and calls the next lockers that wait. It returns
	// how many others wait; after a place, or if the store does not know it, that may be none. The store sends a request again that failed on the way, until
	// [ReleaseRequest.Deadline]. "Not the owner" after a try of unknown outcome
	// counts as released. Errors match [ErrNotOwner], [ErrUnavailable] or
	// [ErrNotReady]. The store uses only the values of ctx: a release must not fail
	// because a client has gone.
	Release(ctx context.Context, req ReleaseRequest) (found Waiting, err error)

	// Calls has hear called for each call to the locker with the id: after a release when its turn comes, and
	// whenever calls may have been lost, also when that was before the calls began. A locker calls it once. Calls returns at once; hear may be called from any goroutine, and before Calls
	// returns. The function stop ends the calls, and does not wait for one under way.
	Calls(id string, hear func(Call)) (stop func())
}

// Limited is what a [Store] implements that never serves some requests, in any state of the
// key: core.New and core.NewGuard refuse what such a store would refuse.
type Limited interface {
	// Serves returns nil, or the [ErrConfig] that Acquire would return for such a hold. It asks no
	// server.
	Serves(h Hold) error
}

// Hold is what [Limited] tells about: a way to hold a lock.
type Hold struct {
	Kind Kind
	// TTL is the lease; zero is any lease.
	TTL time.Duration
	// Line is where the caller stands that waits for it. Only a store with [Turns] is asked for another
	// than [InTurn].
	Line Line
	// Offered says that the hold is to begin with an offer ([Offered]). core asks no store for it.
	Offered bool
	// Moves says that the hold is to be handed over to another owner ([AcquireRequest.From]). Only a
	// store with [Turns] is asked for it.
	Moves bool
}

// AcquireRequest asks for a lock; see [Store.Acquire].
type AcquireRequest struct {
	// Key names the lock.
	Key string
	// Owner is the holder to be. It is unique, and never used again after its
	// release.
	Owner string
	// Kind says which other owners can hold the lock at the same time.
	Kind Kind
	// AtMost is how many owners may have places, with this one: for a [Permit], at
	// least 1. A request is compared with all places of the key, also if they were
	// asked for with another number.
	AtMost int
	// TTL is the lease. The store counts it from the moment of the grant.
	TTL time.Duration
	// Waiter, unless empty, is the entry of a waiting locker. The store puts
	// it into the lock's list of waiting lockers if the try is refused. A locker is
	// in the list once, with the kind of its last request.
	Waiter Waiter
	// Left is for how long the caller of an exclusive request still waits. For as
	// long, but at most for 1.5 s from each request, the store grants no new place
	// to a locker that is not before it in the list. Zero keeps no locker out.
	Left time.Duration
	// Line says where the caller stands among the waiting callers. Any other line than [InTurn] is for
	// exclusive requests that have a Waiter, and for a store with [Turns].
	Line Line
	// Number is the number that an earlier request of the same caller got ([Reply.Number]);
	// zero: the caller comes at this moment.
	Number int64
	// Order says which of two callers of one Waiter that are [Newest] and have no Number came
	// later: the caller with the greater Order. Requests may arrive in any order. So a store
	// refuses the earlier of the two also if its request arrives last, and gives a request that
	// is repeated the number that it has already. It does so also when callers of other Waiters have
	// come since: for a minute at least, and for the last 63 Waiters.
	Order int64
	// Offer, unless zero, is the token of an offer to Waiter ([Offered]). The owner wants
	// the lock in place of that offer. It is for an exclusive owner.
	Offer int64
	// From, unless empty, is the owner that hands the lock on to Owner, in one atomic step, on a store
	// with [Turns]. Such a request has no Waiter, Line or Offer.
	//
	// It is granted only while From holds the lock exclusively, or has its place, and the kind
	// of the request is the kind of that hold. From stops being the holder then, and Owner is the
	// holder, with a new and greater token and its own TTL; it may be shorter than the rest of From's
	// lease. The list of waiting lockers, the places of others and a barrier stay as they are. If the
	// lock may now end earlier than the waiting lockers have learned, the store signals them, as after a
	// release: they ask, and learn the new time. A repeated request, where Owner holds the lock already,
	// is granted again with the same token, and the lease is not changed.
	//
	// Any other request with From is refused: it never waits, and enters no list. Acquire returns an
	// error that matches [ErrNotOwner]: [ErrPassedOn] for as long as Noted says, [ErrRevoked],
	// or else [ErrDeleted] or [ErrTakenOver]. An owner that was only offered the lock ([Offered]), and
	// has not renewed it yet, does not hold it.
	From string
	// Above is the highest fencing token that was given out under From, if the store may not know
	// it; else zero. The token of the grant is greater.
	Above int64
	// Noted is for how long, after the end of the lease that From had, the store notes that From
	// has handed the lock on. Zero notes nothing.
	Noted time.Duration
	// Deadline is when the caller stops waiting for the reply; zero is never.
	Deadline time.Time
	// Late receives an outcome that came too late for Acquire to return; it is
	// [ErrNotReady] for a request that the store had not sent when its caller left,
	// and then did not send. It must not be nil, unless the caller waits until the end:
	// without a Deadline, and with a context that does not end.
	Late func(Reply, error)
}

// Reply is the outcome of a try.
type Reply struct {
	// Granted says that the owner holds the lock.
	Granted bool
	// Token is the fencing token of the grant. It is greater than every earlier token of the
	// key for a holder of the same kind or an exclusive holder. The token of an exclusive
	// holder is greater than all before it. For a [Permit] it is the first of [Tokens].
	//
	// Of a refusal by a store that makes offers ([Offered]) it is the token of the exclusive holder, or of the offer, that
	// stood in the way; zero if there was none. A grant with a greater token was made after
	// the request was carried out.
	Token int64
	// Room is how many tokens follow Token that the store never mints, for hand-overs in
	// the process; the lock is released when they are used up. Zero is no bound: then
	// [ReleaseRequest.Token] has the store mint above them, and where that release never comes
	// the store's clock does. It is not for a [Permit].
	Room int64
	// Holder is the owner that holds the lock instead, if known. Of several it
	// lists all or some, separated by commas.
	Holder string
	// Note is what else there is to say about a refusal. It stands in the error of a caller that
	// waits for no longer than TTL, and is mostly empty.
	Note string
	// Full says that the request was refused because [AcquireRequest.AtMost] owners
	// have places.
	Full bool
	// TTL is after what time it makes sense to ask again: what remains of the
	// holder's lease, negative if unknown. Where owners have places it is at most
	// 1 s.
	TTL time.Duration
	// Listed says that [AcquireRequest.Waiter] is in the lock's list, so that the
	// store calls the locker when its turn comes. A locker that is not listed asks by time.
	Listed bool
	// Number is the number of a caller that is [Newest]: greater than the number of each such
	// caller of the key that came before. A refused caller that is [OneWaiter] gets a number that is
	// not zero, and has no other meaning.
	Number int64
	// Out says that the request was refused, and that its caller must not wait: a newer caller
	// has come ([Newest]), or another caller waits ([OneWaiter]).
	Out bool
	// Sent is when the store sent the first try of this request, or shortly before. The client
	// counts the lease from there (Redlock, "How to do it", step 3), so that it
	// never trusts the lease longer than the server keeps it.
	Sent time.Time
	// Ambiguous says that a try of this request may still be executed later,
	// since its reply never came. It also has a meaning together with an error.
	Ambiguous bool
}

// Renewal asks to extend one lease.
type Renewal struct {
	Key   string
	Owner string
	// Kind is the kind of the grant.
	Kind Kind
	// TTL is what remains of the lease afterwards, at least: a renewal never
	// shortens it. Zero only checks that the owner still holds the lock.
	TTL time.Duration
	// Asked says that a caller waits for this renewal. The renewals of the
	// watchdog must not wait for other requests, these may.
	Asked bool
}

// ReleaseRequest gives up a lock.
type ReleaseRequest struct {
	Key   string
	Owner string
	// Kind and AtMost are as in the request that was granted.
	Kind   Kind
	AtMost int
	// Token is the highest fencing token that was given out under this owner.
	Token int64
	// TTL is the lease that the lock had. It bounds how long the store
	// remembers Token.
	TTL time.Duration
	// Remember asks the store to note Token: the store did not mint it itself,
	// or so long ago that it may have forgotten it.
	Remember bool
	// Revoked, unless zero, says that an operator releases the lock, and not its owner. For so long the
	// store notes that, if it shows its locks to operators ([Lister]); another store takes no notice
	// of the field. A request of the owner that is refused, since it does not hold the lock, then gets
	// [ErrRevoked]. The note is made together with the release, or not at all, and costs other requests
	// for the key nothing.
	Revoked time.Duration
	// By names the operator. A store with a [Registry] keeps it with the note, for the log of the
	// process that has lost the lock.
	By string
	// Waiter, unless empty, goes to the end of the list of waiting lockers: the
	// releasing locker wants the lock again, or a place ([Waiter.Place]; after a place in any case). A store that bounds its lists does not enter it
	// into a full one, or those in the list would keep it for themselves.
	Waiter Waiter
	// Deadline is when the store stops sending the request again. A request that
	// has not been sent until then may stay unsent, which is an error.
	Deadline time.Time
}
