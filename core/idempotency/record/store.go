package record

import (
	"context"
	"errors"
	"time"
)

// Store is a backend that keeps records: one record for each idempotency key, which
// is claim, lease and stored response in one. A claim has a token. Every request
// compares the token before it changes anything, and repeating a request changes
// nothing. The store's clock counts. All methods are safe for concurrent use.
//
// The store may repeat a request that failed on the way, within the Deadline of the
// request. Errors match driver.ErrUnavailable, driver.ErrNotReady (package core/driver) or [ErrDamaged].
// Package core/redisstore has the Store on Redis, which keeps locks as well. Package
// core/idempotency/record/recordtest is this contract as a test suite.
type Store interface {
	// Claim takes the record for a token, or tells why not. It takes a record that
	// has no claim. It also takes a record after the end of its lease, if its fingerprint
	// is the same and its effect is not marked. A record that is the token's own already is
	// granted again, as it is.
	//
	// With a Ticket Claim takes only a claim that was handed over with it
	// ([MarkRequest.HandOver]): the token of the attempt that handed over is the ticket. The claim
	// is granted if no attempt has taken it, or if the last one gave it up, also after its lease and
	// although it is marked. After the lease of an attempt that took it, it is granted by the
	// rule above. A claim that was never taken keeps its generation. The other outcomes
	// are StateInFlight (taken, or not handed over yet: [CommitRequest.HandOver]), StateCompleted and
	// StateUnavailable (finished), StateUnknown, StateMismatch, and StateExpired: there is no such
	// record, or the claim is of an attempt that knows nothing of the ticket.
	//
	// A ticket is good until the end of the lease that the claim has when it is handed over. Until then
	// a duplicate finds StateInFlight, also after the lease of an attempt that took it, unless the
	// claim is marked or the duplicate is Strict.
	//
	// When ctx ends or the deadline passes before the outcome is known, Claim
	// returns at once an error that matches [driver.ErrPending], and calls
	// [ClaimRequest.Late] exactly once, from any goroutine, with the late result. In every
	// other case it never calls Late.
	Claim(ctx context.Context, req ClaimRequest) (ClaimReply, error)

	// Extend renews leases. It calls done exactly once for each lease, in any
	// order, from any goroutine, with its index and its outcome: nil (also if the
	// response is stored already), [driver.ErrNotOwner], or a failure on the way. It
	// returns when all have been reported; after ctx ends, that is soon.
	Extend(ctx context.Context, batch []Extension, done func(i int, err error))

	// Mark notes on the record that the effect is about to happen, or that the claim is handed
	// over, and renews the lease. It returns [driver.ErrNotOwner] if the record is not the
	// token's.
	Mark(ctx context.Context, req MarkRequest) error

	// Step stores the steps of the request with the claim, and renews the lease. It returns
	// [driver.ErrNotOwner] if the record is not the token's, or has its response. Requests of one
	// token may arrive twice, late and in any order: the longest text counts ([StepRequest.Log]).
	Step(ctx context.Context, req StepRequest) error

	// Commit stores the response for good, in place of the steps, and wakes the requests that wait for it.
	// Only the token matters, not the lease. A record that is gone altogether (the
	// store lost it) is written anew. If the record is another token's, Commit
	// changes nothing, and [CommitReply] tells what there is. An interim response is stored
	// with the claim, for as long as the claim has the ticket.
	Commit(ctx context.Context, req CommitRequest) (CommitReply, error)

	// Abandon gives up the claim, as if it had never been made, and wakes the
	// requests that wait. If the claim had taken over from an earlier one, the record
	// stays as that one had left it: lapsed. The next claim takes over with the same
	// generation, and a Commit of the earlier token still counts. A claim that was taken with a
	// ticket goes back to the ticket, and its lease ends with the ticket, also if the attempt has handed
	// it over. Any other claim that was handed over goes, with its ticket. A claim stays if another
	// attempt has taken it, or if the interim response of the attempt is stored. A claim with steps
	// leaves a lapsed record with these steps, and no step is open.
	// Abandon returns [driver.ErrNotOwner] if the token has no claim, or if that claim stays; after
	// a try of unknown outcome that counts as success.
	Abandon(ctx context.Context, req AbandonRequest) error

	// Resolve settles a record that a claim would find in [StateUnknown]: it stores
	// a response, or deletes the record. A record with steps is not deleted: it keeps them, lapsed
	// and without a mark, and the next claim gets them. Otherwise Resolve changes nothing and returns
	// [ErrNotUnknown]. If an earlier try may have deleted the record, a missing
	// record counts as success.
	Resolve(ctx context.Context, req ResolveRequest) error

	// Forget deletes a record in any state.
	Forget(ctx context.Context, id string) error

	// Await calls wake when the record may have been completed or abandoned: when
	// that happened, or when the store cannot be sure that it did not (after a
	// reconnect, or because the wait began later than since, when the caller last looked).
	// Await returns at once. The function stop ends the wait and does not wait for a call
	// of wake.
	Await(id string, since time.Time, wake func()) (stop func())
}

// ErrNotUnknown says that there is nothing to resolve: the request is still in
// flight, its answer is stored, its claim is free for the next attempt, or there is
// no record of it.
var ErrNotUnknown = errors.New("interlock: the outcome of the request is not unknown")

// ErrDamaged says that the data under the name of a record is not a record, or has an
// unknown version. The request is refused, because it may have been carried out.
var ErrDamaged = errors.New("interlock: idempotency record damaged or of an unknown version")

// State says what a store knows about a record. The zero value is no state.
type State int

// The states of a record, as one request sees it.
const (
	// StateGranted: the claim is the caller's.
	StateGranted State = iota + 1
	// StateInFlight: the lease of another claim has not ended.
	StateInFlight
	// StateCompleted: the record has a response.
	StateCompleted
	// StateUnavailable: the request was carried out, and its response could not be
	// stored.
	StateUnavailable
	// StateMismatch: the record is another request's.
	StateMismatch
	// StateUnknown: the lease has ended, and the record must not be taken over.
	StateUnknown
	// StateExpired: there was a record, and its retention has ended.
	StateExpired
)

// ClaimRequest asks for a record.
type ClaimRequest struct {
	// ID names the record. It is made of hashes, 43 characters of base64url.
	ID string
	// Token identifies the attempt that claims: unique, never used for another
	// request.
	Token string
	// Fingerprint tells requests with the same key apart.
	Fingerprint [32]byte
	// Lease bounds the protection of the claim, from the moment it is granted: at most 31
	// days.
	Lease time.Duration
	// Retention is the life of the record if no other request follows: at most 36,500
	// days, as the Tombstone of a CommitRequest. A store can add the two to the present time.
	Retention time.Duration
	// Strict asks never to take over a claim that lapsed, and to mark this one
	// from its start.
	Strict bool
	// Transactional says that all effects of the request are made in one transaction
	// with the record ([Unit]). A store that keeps the claim and the effects in one
	// database need not flush the claim: if it is lost, so are the effects.
	Transactional bool
	// Tombstone says that an expired record may have left a trace to look for.
	Tombstone bool
	// Waits asks the store to announce the completion, if the record is in flight.
	Waits bool
	// Ticket is the token of the attempt that handed its claim over; see [Store.Claim].
	Ticket string
	// Look asks for the state and changes nothing. Token, Fingerprint and Ticket are empty.
	// StateGranted says that the claim has lapsed, and StateExpired also that there is no record.
	Look bool
	// Deadline is the end of the caller's wait for the reply.
	Deadline time.Time
	// Late receives an outcome that came too late for Claim to return.
	Late func(ClaimReply, error)
}

// ClaimReply is the outcome of a claim.
type ClaimReply struct {
	// State is the state of the record after the call.
	State State
	// Generation of a claim that was granted is 1, and one more with each
	// take-over.
	Generation int64
	// Steps are the steps of the earlier attempts, for a claim that is granted: the Log of a
	// [StepRequest]. It is empty if there are none.
	Steps string
	// Left is the rest of the lease of a claim in flight.
	Left time.Duration
	// Listed says that its completion will be announced. The caller looks all the same from
	// time to time: an announcement can be lost.
	Listed bool
	// Response is the envelope of a record that is completed. In flight it is the interim
	// response, if there is one; a claim with a Ticket need not get that.
	Response string
	// Sent is the time of the first try: the lease counts from there.
	Sent time.Time
	// Ambiguous says that a try may still be executed later. It also has a meaning together
	// with an error.
	Ambiguous bool
}

// Extension asks to renew one lease.
type Extension struct {
	ID, Token        string
	Lease, Retention time.Duration
}

// MarkRequest marks the effect of a claim, or hands the claim over.
type MarkRequest struct {
	ID, Token        string
	Lease, Retention time.Duration
	// HandOver makes the token a ticket; the effect is not marked. Until another attempt takes
	// the claim, it stays the token's.
	HandOver bool
	Deadline time.Time
}

// CommitRequest stores a response.
type CommitRequest struct {
	ID, Token string
	// Fingerprint is as in ClaimRequest.
	Fingerprint [32]byte
	Generation  int64
	// Response is the envelope; nil if the response cannot be stored.
	Response []byte
	// Interim says that the claim was handed over with Token as its ticket. The response is for
	// duplicates until an attempt stores one for good. It is not stored, and Commit has
	// succeeded, if that has happened already.
	Interim bool
	// HandOver, unless zero, hands the claim over with an interim response, for so long, as
	// [Store.Mark] does. Only a [Unit] gets it.
	HandOver time.Duration
	// Retention is its life; an earlier promise is not shortened.
	Retention time.Duration
	// Tombstone is for how much longer it is remembered that there was a
	// response; zero is not.
	Tombstone time.Duration
	// Deadline is the end of the tries.
	Deadline time.Time
	// Release, unless nil, is called once, at the earliest when the commit has been
	// started, and at the latest before Commit returns. It releases a lock. If that
	// is a lock of the same Redis, the commit goes with it, in one pipeline.
	Release func(ctx context.Context)
}

// CommitReply is the outcome of a commit.
type CommitReply struct {
	// State is StateGranted when the response is stored ([CommitReply.Stored]).
	// Otherwise the record is another's: StateInFlight, StateCompleted,
	// StateUnavailable or StateMismatch. For an interim response it is StateUnknown if the
	// claim is gone.
	State State
	// Response is the other's envelope, where it is completed.
	Response string
}

// Stored reports whether the response is stored. If not, the record is another attempt's or
// another request's, as State says.
func (r CommitReply) Stored() bool { return r.State == StateGranted }

// AbandonRequest gives up a claim.
type AbandonRequest struct {
	ID, Token string
	Deadline  time.Time
	// Release is as in CommitRequest.
	Release func(ctx context.Context)
}

// ResolveRequest settles a record with an unknown outcome.
type ResolveRequest struct {
	ID string
	// Token replaces the claim's. It is used for nothing else.
	Token string
	// Strict is as in ClaimRequest: a claim that has lapsed is unknown even if it
	// is not marked.
	Strict bool
	// Response is the envelope to store; nil deletes the record.
	Response []byte
	// Step, unless empty, is the name of the step that must be open. Then Response is nil. Log, the
	// outcome of the step, is appended to the steps, and the next claim gets them.
	Step string
	Log  []byte
	// Retention, Tombstone and Deadline are as in CommitRequest.
	Retention, Tombstone time.Duration
	Deadline             time.Time
}
