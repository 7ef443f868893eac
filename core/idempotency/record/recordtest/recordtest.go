// Package recordtest is the contract of an [record.Store] as a test suite. The
// author of a store runs it in a test of that store:
//
//	func TestContract(t *testing.T) {
//		recordtest.Run(t, func(t *testing.T) record.Store { return open(t) })
//	}
//
// It uses short leases and real time, so it takes some seconds. It shows that a store
// answers as the engine expects. It cannot show what happens when a server dies, when
// the network breaks or when a record is damaged: that needs tests of the store's own.
package recordtest

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core/idempotency/record"
)

const (
	// long is the lease of claims that shall not lapse during a test, short the
	// lease of claims that shall, and tiny of claims that shall at once.
	long  = 30 * time.Second
	short = 200 * time.Millisecond
	tiny  = 10 * time.Millisecond
	// kept is the retention of records that shall not expire during a test, brief
	// the retention of records that shall.
	kept  = 10 * time.Minute
	brief = 300 * time.Millisecond
	// longestLease and longestKept are the longest times that the engine asks for.
	longestLease = 31 * 24 * time.Hour
	longestKept  = 36500 * 24 * time.Hour
	// patience bounds how long a test waits for what must happen.
	patience = 15 * time.Second
	// many is the number of simultaneous requests.
	many = 32
)

// Run tests a store. It calls open once for each part of the contract; open registers
// the closing of its store with t.Cleanup. The parts run in parallel, so open is called
// from several goroutines. The stores may share a server: every part uses separate
// records. Run returns when all parts have ended.
//
// The promises of [record.Store.Await] are tested where the store says that it
// will announce a completion ([record.ClaimReply.Listed]).
func Run(t *testing.T, open func(t *testing.T) record.Store) {
	t.Helper()
	// In a separate group, the parts have ended when the group has.
	t.Run("records", func(t *testing.T) {
		for _, part := range contract {
			t.Run(part.name, func(t *testing.T) {
				t.Parallel()
				part.test(&suite{T: t, store: open(t)})
			})
		}
	})
}

// RunInBubbles is [Run] in fake time: each part of the contract runs in a bubble of
// testing/synctest. It is for a store in memory, which has no network and reads the time
// with [time.Now].
func RunInBubbles(t *testing.T, open func(t *testing.T) record.Store) {
	t.Helper()
	for _, part := range contract {
		t.Run(part.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				part.test(&suite{T: t, store: open(t)})
			})
		})
	}
}

// contract lists the parts in the order of the methods of a store.
var contract = []struct {
	name string
	test func(s *suite)
}{
	{"claim grants a free record", (*suite).grantsFree},
	{"claim is idempotent for its token", (*suite).repeatedClaim},
	{"claim compares whole tokens", (*suite).wholeTokens},
	{"claim keeps records apart", (*suite).recordsApart},
	{"claim grants one of many", (*suite).oneOfMany},
	{"claim tells how long a claim in flight is protected", (*suite).inFlight},
	{"claim refuses another request in each state", (*suite).mismatch},
	{"claim with an ended context", (*suite).endedContext},
	{"claim whose caller leaves", (*suite).callerLeaves},
	{"a claim that lapsed is taken over", (*suite).takenOver},
	{"a claim that lapsed is taken over by one of many", (*suite).takenOverByOne},
	{"a claim that lapsed is still the token's", (*suite).lapsedIsOwn},
	{"a marked claim that lapsed is unknown", (*suite).markedIsUnknown},
	{"a strict claim takes nothing over and is never taken over", (*suite).strictIsUnknown},
	{"extend lengthens and never shortens", (*suite).extendLengthens},
	{"extend reports each lease once", (*suite).extendReportsOnce},
	{"extend with an ended context", (*suite).extendEnded},
	{"mark renews and is idempotent", (*suite).markRenews},
	{"mark is the token's alone", (*suite).markOwn},
	{"a mark excludes a take-over", (*suite).markOrTakeOver},
	{"steps come with the claim of the next attempt", (*suite).stepsComeAlong},
	{"the longest text of steps counts", (*suite).longestSteps},
	{"step is the token's alone", (*suite).stepOwn},
	{"step renews the lease", (*suite).stepRenews},
	{"a claim with an open step that lapsed is unknown", (*suite).openIsUnknown},
	{"an open step excludes a take-over", (*suite).openOrTakeOver},
	{"abandon leaves the steps", (*suite).abandonKeepsSteps},
	{"steps go with a ticket", (*suite).stepsWithATicket},
	{"resolve frees a record with steps", (*suite).resolveSteps},
	{"steps end with their record", (*suite).stepsExpire},
	{"a look shows the last step and the open one", (*suite).listedSteps},
	{"commit stores the envelope byte for byte", (*suite).byteForByte},
	{"commit without an envelope", (*suite).unavailable},
	{"commit is idempotent", (*suite).repeatedCommit},
	{"commit of a record that is gone writes it anew", (*suite).commitGone},
	{"commit tells what another token has", (*suite).commitOthers},
	{"a commit excludes a take-over", (*suite).commitOrTakeOver},
	{"commit of a record that is gone stores one of two", (*suite).commitGoneOnce},
	{"commit and abandon release once", (*suite).releaseOnce},
	{"abandon frees the record for its token alone", (*suite).abandonFrees},
	{"abandon of a take-over leaves the earlier claim", (*suite).abandonTakeOver},
	{"resolve settles only what is unknown", (*suite).resolvesUnknown},
	{"resolve with an envelope", (*suite).resolveStored},
	{"resolve without an envelope", (*suite).resolveFreed},
	{"a resolution excludes a commit, and another", (*suite).resolveOrCommit},
	{"a claim that was handed over is taken with its ticket", (*suite).takesHandedOver},
	{"a ticket is good for nothing else", (*suite).takesOnlyHandedOver},
	{"one of many takes a ticket", (*suite).takesOneOfMany},
	{"a ticket counts until another attempt has the claim", (*suite).ticketRunsOut},
	{"a ticket is taken again after the lease of a dead attempt", (*suite).takenAgain},
	{"abandon gives a claim back to its ticket", (*suite).givenBack},
	{"a ticket keeps duplicates away until its own end", (*suite).closedForTheTicket},
	{"abandon by the attempt that handed over voids the ticket", (*suite).voidedByItsGiver},
	{"abandon by a job that handed over restores the ticket that it took", (*suite).voidedByAJob},
	{"an interim response is for duplicates until the final one", (*suite).interimResponses},
	{"await hears of an interim response", (*suite).awaitInterim},
	{"a look changes nothing", (*suite).looks},
	{"forget deletes in each state", (*suite).forgets},
	{"retention ends", (*suite).retentionEnds},
	{"retention is never shortened", (*suite).retentionKept},
	{"the longest times", (*suite).longestTimes},
	{"a tombstone outlives the record", (*suite).tombstones},
	{"await hears of a commit and of an abandon", (*suite).awaitHears},
	{"await hears what happened before it began", (*suite).awaitLate},
	{"await ends", (*suite).awaitEnds},
}
