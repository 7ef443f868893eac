package casstore

import (
	"context"
	"errors"

	"github.com/interlock-go/interlock/core/driver"
)

// Server is the interface for the author of an adapter: a server that keeps small values
// under names, on a majority of its members, and that changes a value only if it is as it
// was read. etcd, ZooKeeper and NATS are such servers. Package core/casstore/castest is this
// contract as a test suite, and says how an adapter is written. All methods are safe for concurrent use.
//
// Names are texts of ASCII letters, digits and _-~%:/ without an empty part between two
// slashes, of at most 2 KB and the prefix of the store. An entry can have others below it: a name can be the beginning
// of another one. Values are UTF-8 of less than 16 KB. An entry with an empty value is there.
type Server interface {
	// Commit executes a transaction: if all conditions hold, all of its operations, as one
	// change, else none of them. Two transactions are executed one after the other, each on a
	// majority of the members, and an executed transaction is never lost.
	//
	// Each entry that the [Answer] has read is from a moment after the call of Commit, and after the
	// operations: a member that lags must not answer alone. Two entries can be from different
	// moments: the store compares in its next transaction the entries that it relies on.
	//
	// An error that matches [ErrRefused] says that nothing was executed, nor will be, and
	// that the same transaction does not succeed later. An error that matches
	// driver.ErrNotReady says that nothing was executed, nor will be. An error that matches
	// [ErrSettled] says that the transaction was executed, or never will be. After every other
	// error the transaction may have been executed, or may be executed at any later time.
	// Commit sends nothing a second time unless it knows that the first was not executed.
	// It returns soon after ctx has ended.
	Commit(ctx context.Context, txn Txn) (Answer, error)

	// Watch reports the entries right below prefix, which ends with a slash, or the entry with the
	// name prefix, and then all changes, until ctx ends or the watch fails; it returns why. The first report has all entries
	// that there are, and comes also if there are none. Each later report has the changes
	// of one transaction. Reports come in the order of the transactions, one call after the
	// other, and may be late without a bound. A server that can miss changes between two
	// looks may leave out changes that were overwritten since. But it reports a deleted
	// entry as deleted, before or with a new entry of that name, unless that is [Op.Brief].
	Watch(ctx context.Context, prefix string, report func([]Change)) error
}

var (
	// ErrRefused says that a server refuses a transaction for a reason that does not pass: a
	// missing right, a wrong password.
	ErrRefused = driver.ErrRefused

	// ErrSettled says that a server has answered with an error that does not say whether it
	// executed the transaction: etcd without space executes some transactions that it answers
	// so. Nothing is on its way any more: who reads the entries now knows.
	ErrSettled = errors.New("interlock: the server does not say whether it executed the transaction")
)

// Revision is a state of an entry. Two revisions of an entry are equal only if the entry
// was not written between. The zero value is the revision of an entry that is not there.
type Revision struct {
	// Number is above 0, and below 2^46. It is greater than the number of everything that
	// was committed before, under any name. The lock makes its fencing token of it.
	Number int64
	// Version is for a server that cannot compare Number, and zero always for a server that can, as etcd does. Where it
	// is used, a new entry has any positive Version, and each change of an entry that is there makes it one greater. A
	// condition has a Version that the server returned, a Version that the store computed so for its change, or
	// [AnyVersion]. A condition with a zero Version is for a server that uses none, or, with a zero Number, says that
	// the entry is not there.
	Version int64
}

// AnyVersion is the Version in a condition of a store that knows the Number alone: from another
// entry, which the same transaction wrote. The server compares the Number then, and can need a look at the entry
// before. A server without versions compares the Number as always.
const AnyVersion = -1

// next is the Version after a change of an entry.
func (r Revision) next() int64 {
	switch {
	case r.Number == 0:
		return AnyVersion
	case r.Version <= 0:
		return r.Version
	}
	return r.Version + 1
}

// Is reports whether a condition on this revision holds for an entry with the other one.
func (r Revision) Is(other Revision) bool {
	return r == other || r.Version == AnyVersion && r.Number == other.Number
}

// Entry is a value under a name.
type Entry struct {
	Name, Value string
	Revision    Revision
}

// There reports whether there is an entry.
func (e Entry) There() bool { return e.Revision != Revision{} }

// Change is an entry that was written, or the name of an entry that was deleted.
type Change struct {
	Entry
	Deleted bool
}

// Txn is a transaction. No two conditions, and no two operations, have one name. It has at most 128 conditions, at most
// 128 operations, reads and lists together, and at most 128 names in Else: as many as etcd takes.
type Txn struct {
	// If has the conditions. Without any, the operations are executed.
	If []Condition
	// Then has the operations.
	Then []Op
	// Read has the names of entries to return, and List parts of the names, if the conditions
	// held.
	Read []string
	List []Range
	// Else has the names of entries to return if the conditions did not hold.
	Else []string
	// Late, in a transaction that only reads, says that one member may answer alone. Its entries may be from before
	// the call of Commit, but not from before an answer that the same Server has given before the call.
	Late bool
}

// Condition says that an entry has a revision; the zero revision, that it is not there.
type Condition struct {
	Name     string
	Revision Revision
}

// Op writes an entry, or deletes it. To delete an entry that is not there is no failure.
type Op struct {
	Name, Value string
	Delete      bool
	// Brief says that the entry is deleted soon after each writing, and that no lock rests on a condition on it. A
	// server may delete it for good, and later give it a Version that it has had. It has no entries below.
	Brief bool
}

// Range is all entries with names that begin with Prefix, which ends with a slash. With a
// Limit it is a page of a long list. It has all entries that are older than those in [Answer.Read]. Limit alone bounds
// it, also where the server bounds its answers.
type Range struct {
	Prefix string
	// After, unless empty, leaves out all names up to this one.
	After string
	// Limit, unless zero, is how many entries are returned at most.
	Limit int
}

// Answer is what a transaction has done.
type Answer struct {
	// Done says that the conditions held, and the operations were executed.
	Done bool
	// Written has the revisions of the entries that [Txn.Then] wrote, at the same places;
	// zero for a deleted entry. All of them have the same Number: entries of one transaction refer to each other by it,
	// as a call to the lock that was written with it, before anyone knows the Number. Transactions of one request to
	// the server can have the same one. It is empty if Done is false.
	Written []Revision
	// Read has the entries of [Txn.Read], or of [Txn.Else] if Done is false, at the same
	// places; a missing entry has the zero Revision.
	Read []Entry
	// Lists has the entries of each [Txn.List], in the order of their names. It is empty if
	// Done is false.
	Lists [][]Entry
}
