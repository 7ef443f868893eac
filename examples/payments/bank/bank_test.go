package bank_test

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core/fencing/redisfence"
	"github.com/interlock-go/interlock/examples/payments/bank"
	"github.com/interlock-go/interlock/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// noWork takes no time.
func noWork(context.Context) error { return nil }

// open returns an empty bank.
func open(t *testing.T, work func(context.Context) error) (*bank.Bank, *redis.Client) {
	t.Helper()
	rdb := redistest.Shared(t).Client(t)
	return bank.New(rdb, work), rdb
}

func put(t *testing.T, b *bank.Bank, token int64, balances map[string]int64) {
	t.Helper()
	for id, balance := range balances {
		if _, err := b.Put(t.Context(), bank.Held{ID: id, Token: token}, balance); err != nil {
			t.Fatal(err)
		}
	}
}

func wantBalance(t *testing.T, b *bank.Bank, id string, want int64) {
	t.Helper()
	if a, err := b.Get(t.Context(), id); err != nil || a.Balance != want {
		t.Errorf("%s has %d (%v), want %d", id, a.Balance, err, want)
	}
}

func TestAChangeUnderTheLatestTokenIsWritten(t *testing.T) {
	b, _ := open(t, noWork)
	put(t, b, 1, map[string]int64{"alice": 100, "bob": 5})

	if a, err := b.Debit(t.Context(), bank.Held{ID: "alice", Token: 2}, 30); err != nil || a != (bank.Account{ID: "alice", Balance: 70}) {
		t.Errorf("debit: %+v, %v", a, err)
	}
	// The same token again: a holder may change an account twice.
	from, to, err := b.Transfer(t.Context(), bank.Held{ID: "alice", Token: 2}, bank.Held{ID: "bob", Token: 1}, 20)
	if err != nil || from != (bank.Account{ID: "alice", Balance: 50}) || to != (bank.Account{ID: "bob", Balance: 25}) {
		t.Errorf("transfer: %+v, %+v, %v", from, to, err)
	}
	wantBalance(t, b, "alice", 50)
	wantBalance(t, b, "bob", 25)
}

func TestASmallerTokenChangesNothing(t *testing.T) {
	b, _ := open(t, noWork)
	put(t, b, 10, map[string]int64{"alice": 100, "bob": 100})
	old, current := bank.Held{ID: "alice", Token: 9}, bank.Held{ID: "bob", Token: 10}

	_, putErr := b.Put(t.Context(), old, 1)
	_, debitErr := b.Debit(t.Context(), old, 1)
	_, _, fromErr := b.Transfer(t.Context(), old, current, 1)
	_, _, toErr := b.Transfer(t.Context(), current, old, 1)
	for name, err := range map[string]error{"put": putErr, "debit": debitErr, "transfer from": fromErr, "transfer to": toErr} {
		if !errors.Is(err, bank.ErrStaleToken) {
			t.Errorf("%s: %v, want ErrStaleToken", name, err)
		}
	}
	wantBalance(t, b, "alice", 100)
	wantBalance(t, b, "bob", 100)
}

// A transfer that may not have one side must not claim the other either, or it
// would turn away that one's rightful holder.
func TestARefusedTransferClaimsNothing(t *testing.T) {
	b, rdb := open(t, noWork)
	put(t, b, 10, map[string]int64{"alice": 100, "bob": 100})

	_, _, err := b.Transfer(t.Context(), bank.Held{ID: "alice", Token: 20}, bank.Held{ID: "bob", Token: 9}, 1)
	if !errors.Is(err, bank.ErrStaleToken) {
		t.Fatalf("got %v, want ErrStaleToken", err)
	}
	if token := rdb.HGet(t.Context(), bank.AccountKey("alice"), redisfence.Field).Val(); token != "10" {
		t.Errorf("alice is claimed for token %s, want 10", token)
	}
}

// paused is work that says when it has begun and ends when it is told to.
func paused() (work func(context.Context) error, begun <-chan struct{}, proceed func()) {
	b, p := make(chan struct{}), make(chan struct{})
	return func(context.Context) error {
		close(b)
		<-p
		return nil
	}, b, sync.OnceFunc(func() { close(p) })
}

// A holder that wakes up after its successor is done.
func TestAPausedHolderCannotUndoItsSuccessor(t *testing.T) {
	work, begun, proceed := paused()
	stale, rdb := open(t, work)
	successor := bank.New(rdb, noWork)
	put(t, successor, 1, map[string]int64{"alice": 100})

	result := make(chan error, 1)
	go func() {
		_, err := stale.Debit(t.Context(), bank.Held{ID: "alice", Token: 2}, 10)
		result <- err
	}()
	<-begun
	if _, err := successor.Debit(t.Context(), bank.Held{ID: "alice", Token: 3}, 1); err != nil {
		t.Fatal(err)
	}
	proceed()
	if err := <-result; !errors.Is(err, bank.ErrStaleToken) {
		t.Errorf("the late write: %v, want ErrStaleToken", err)
	}
	wantBalance(t, successor, "alice", 99)
}

// A holder that wakes up between its successor's read and write. Were it let
// in, its own update would be lost although the client was told it is done.
func TestAPausedHolderCannotWriteBehindItsSuccessorsRead(t *testing.T) {
	staleWork, staleBegun, wakeStale := paused()
	stale, rdb := open(t, staleWork)
	work, begun, proceed := paused()
	successor := bank.New(rdb, work)
	put(t, successor, 1, map[string]int64{"alice": 100, "bob": 0})

	result, successorResult := make(chan error, 1), make(chan error, 1)
	go func() {
		_, _, err := stale.Transfer(t.Context(), bank.Held{ID: "alice", Token: 2}, bank.Held{ID: "bob", Token: 2}, 10)
		result <- err
	}()
	<-staleBegun
	go func() {
		_, err := successor.Debit(t.Context(), bank.Held{ID: "alice", Token: 3}, 1)
		successorResult <- err
	}()
	<-begun
	wakeStale()
	if err := <-result; !errors.Is(err, bank.ErrStaleToken) {
		t.Errorf("the late write: %v, want ErrStaleToken", err)
	}
	proceed()
	if err := <-successorResult; err != nil {
		t.Errorf("the successor: %v", err)
	}
	wantBalance(t, successor, "alice", 99)
	wantBalance(t, successor, "bob", 0) // neither side of the transfer
}

// When the data is gone the claim is gone: what was read is not to be relied on.
func TestAClaimDoesNotSurviveTheData(t *testing.T) {
	work, begun, proceed := paused()
	b, rdb := open(t, work)
	put(t, b, 5, map[string]int64{"alice": 100})

	result := make(chan error, 1)
	go func() {
		_, err := b.Debit(t.Context(), bank.Held{ID: "alice", Token: 6}, 10)
		result <- err
	}()
	<-begun
	rdb.FlushAll(t.Context())
	put(t, b, 3, map[string]int64{"alice": 7}) // as from a backup, with its old token
	proceed()
	if err := <-result; !errors.Is(err, bank.ErrStaleToken) {
		t.Errorf("got %v, want ErrStaleToken", err)
	}
	wantBalance(t, b, "alice", 7)
}

func TestTwoUnsafeDebitsLoseOne(t *testing.T) {
	work, begun, proceed := paused()
	slow, rdb := open(t, work)
	quick := bank.New(rdb, noWork)
	put(t, quick, 1, map[string]int64{"alice": 100})

	result := make(chan error, 1)
	go func() {
		_, err := slow.DebitUnsafe(t.Context(), "alice", 10)
		result <- err
	}()
	<-begun
	_, quickErr := quick.DebitUnsafe(t.Context(), "alice", 10)
	proceed()
	if err := errors.Join(quickErr, <-result); err != nil {
		t.Fatal(err)
	}
	wantBalance(t, quick, "alice", 90) // and not 80
}

// A transfer that is made between the reads of a report.
func TestAReportWithoutALockSeesHalfATransfer(t *testing.T) {
	work, begun, proceed := paused()
	slow, rdb := open(t, work)
	quick := bank.New(rdb, noWork)
	put(t, quick, 1, map[string]int64{"alice": 100, "bob": 100})

	var one, other bank.Account
	result := make(chan error, 1)
	go func() {
		var err error
		one, other, err = slow.Report(t.Context(), "alice", "bob")
		result <- err
	}()
	<-begun
	_, _, quickErr := quick.Transfer(t.Context(), bank.Held{ID: "alice", Token: 2}, bank.Held{ID: "bob", Token: 2}, 10)
	proceed()
	if err := errors.Join(quickErr, <-result); err != nil {
		t.Fatal(err)
	}
	if one.Balance != 100 || other.Balance != 110 { // and not 100 or 90
		t.Errorf("%+v, %+v", one, other)
	}
	if one, other, err := quick.Report(t.Context(), "alice", "bob"); err != nil || one.Balance+other.Balance != 200 {
		t.Errorf("after it: %+v, %+v, %v", one, other, err)
	}
}

func TestRefusalsThatAreTheClientsFault(t *testing.T) {
	b, _ := open(t, noWork)
	put(t, b, 1, map[string]int64{"alice": 100, "rich": bank.MaxBalance, "bob": 0})
	ctx := t.Context()
	held := func(id string) bank.Held { return bank.Held{ID: id, Token: 2} }
	debit := func(id string, amount int64) error { _, err := b.Debit(ctx, held(id), amount); return err }
	unsafe := func(id string, amount int64) error { _, err := b.DebitUnsafe(ctx, id, amount); return err }
	transfer := func(from, to string, amount int64) error {
		_, _, err := b.Transfer(ctx, held(from), held(to), amount)
		return err
	}
	create := func(id string, balance int64) error { _, err := b.Put(ctx, held(id), balance); return err }
	get := func(id string) error { _, err := b.Get(ctx, id); return err }

	for name, c := range map[string]struct{ got, want error }{
		"more than there is":           {debit("alice", 101), bank.ErrInsufficientFunds},
		"more than there is, unsafely": {unsafe("alice", 101), bank.ErrInsufficientFunds},
		"transfer of more":             {transfer("alice", "bob", 101), bank.ErrInsufficientFunds},
		"nobody's account":             {get("nobody"), bank.ErrUnknownAccount},
		"debit of nobody":              {debit("nobody", 1), bank.ErrUnknownAccount},
		"unsafe debit of nobody":       {unsafe("nobody", 1), bank.ErrUnknownAccount},
		"transfer from nobody":         {transfer("nobody", "bob", 1), bank.ErrUnknownAccount},
		"transfer to nobody":           {transfer("bob", "nobody", 1), bank.ErrUnknownAccount},
		"amount 0":                     {debit("alice", 0), bank.ErrInvalid},
		"amount -1":                    {unsafe("alice", -1), bank.ErrInvalid},
		"amount too large":             {transfer("alice", "bob", bank.MaxAmount+1), bank.ErrInvalid},
		"to oneself":                   {transfer("alice", "alice", 1), bank.ErrInvalid},
		"above the highest balance":    {transfer("alice", "rich", 1), bank.ErrInvalid},
		"negative balance":             {create("alice", -1), bank.ErrInvalid},
		"balance too high":             {create("alice", bank.MaxBalance+1), bank.ErrInvalid},
		"no id":                        {get(""), bank.ErrInvalid},
		"id with a slash":              {get("a/b"), bank.ErrInvalid},
		"id with a brace":              {create("a}b", 1), bank.ErrInvalid},
		"id of 65":                     {get(strings.Repeat("a", 65)), bank.ErrInvalid},
	} {
		if !errors.Is(c.got, c.want) {
			t.Errorf("%s: %v, want %v", name, c.got, c.want)
		}
	}
	wantBalance(t, b, "alice", 100)
	wantBalance(t, b, "bob", 0)
	wantBalance(t, b, "rich", bank.MaxBalance)
	if err := create(strings.Repeat("a", 64), bank.MaxBalance); err != nil {
		t.Errorf("the longest id and the highest balance: %v", err)
	}
}

func TestNothingIsWrittenWhenTheContextEndsDuringTheWork(t *testing.T) {
	lost := errors.New("lease lost")
	ctx, cancel := context.WithCancelCause(t.Context())
	b, rdb := open(t, func(ctx context.Context) error {
		cancel(lost)
		return bank.Work(time.Hour)(ctx)
	})
	put(t, b, 1, map[string]int64{"alice": 100})

	if _, err := b.Debit(ctx, bank.Held{ID: "alice", Token: 2}, 1); !errors.Is(err, lost) {
		t.Errorf("got %v, want the context's cause", err)
	}
	wantBalance(t, bank.New(rdb, noWork), "alice", 100)
}

func TestTheLedgerSurvivesAScriptFlush(t *testing.T) {
	b, rdb := open(t, noWork)
	put(t, b, 1, map[string]int64{"alice": 100})
	for token := range int64(3) {
		rdb.ScriptFlush(t.Context())
		if _, err := b.Debit(t.Context(), bank.Held{ID: "alice", Token: token + 2}, 1); err != nil {
			t.Fatal(err)
		}
	}
	wantBalance(t, b, "alice", 97)
}

// An unreachable ledger is told apart from a write whose answer was lost.
func TestAnUnreachableLedger(t *testing.T) {
	server := redistest.Start(t)
	b := bank.New(server.Client(t), func(context.Context) error { server.Kill(); return nil })
	put(t, b, 1, map[string]int64{"alice": 100})

	if _, err := b.Debit(t.Context(), bank.Held{ID: "alice", Token: 2}, 1); !errors.Is(err, bank.ErrOutcomeUnknown) {
		t.Errorf("killed before the write: %v, want ErrOutcomeUnknown", err)
	}
	if _, err := b.Debit(t.Context(), bank.Held{ID: "alice", Token: 3}, 1); !errors.Is(err, bank.ErrUnavailable) {
		t.Errorf("killed before the read: %v, want ErrUnavailable", err)
	}
}

// The write happens, its reply is lost, and another holder comes in before it
// could be sent again: to call it refused would be a lie.
func TestAWriteWhoseReplyIsLostIsNotRepeated(t *testing.T) {
	server := redistest.Start(t)
	successor := bank.New(server.Client(t), noWork)
	put(t, successor, 1, map[string]int64{"alice": 101})
	// The scripts must be known to the server: it is not its refusal of an
	// unknown one that shall get lost.
	if _, err := successor.Debit(t.Context(), bank.Held{ID: "alice", Token: 1}, 1); err != nil {
		t.Fatal(err)
	}

	cut := &replyCutter{meanwhile: func() {
		if _, err := successor.Debit(t.Context(), bank.Held{ID: "alice", Token: 3}, 1); err != nil {
			t.Error(err)
		}
	}}
	b := bank.New(server.Client(t, func(o *redis.Options) { o.Dialer = cut.dial }), func(context.Context) error {
		cut.armed.Store(true)
		return nil
	})
	_, err := b.Debit(t.Context(), bank.Held{ID: "alice", Token: 2}, 10)
	if !errors.Is(err, bank.ErrOutcomeUnknown) || errors.Is(err, bank.ErrStaleToken) {
		t.Errorf("got %v, want ErrOutcomeUnknown", err)
	}
	wantBalance(t, successor, "alice", 89)
}

// replyCutter loses the next reply once it is armed.
type replyCutter struct {
	armed     atomic.Bool
	meanwhile func() // after the loss, before the client learns of it
}

func (c *replyCutter) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	return &cutConn{Conn: conn, replyCutter: c}, err
}

type cutConn struct {
	net.Conn
	*replyCutter
	cut atomic.Bool
}

func (c *cutConn) Read(p []byte) (int, error) {
	if c.cut.Load() { // go-redis reads ahead, and then again
		return 0, io.ErrUnexpectedEOF
	}
	n, err := c.Conn.Read(p)
	if c.armed.CompareAndSwap(true, false) {
		c.cut.Store(true)
		c.meanwhile()
		return 0, io.ErrUnexpectedEOF
	}
	return n, err
}

// On a Cluster both sides of a transfer must still be one step.
func TestTransferOnACluster(t *testing.T) {
	b := bank.New(redistest.Cluster(t, 2, 0).Client(t), noWork)
	put(t, b, 1, map[string]int64{"alice": 100, "bob": 0})
	if _, _, err := b.Transfer(t.Context(), bank.Held{ID: "alice", Token: 2}, bank.Held{ID: "bob", Token: 3}, 40); err != nil {
		t.Fatal(err)
	}
	wantBalance(t, b, "alice", 60)
	wantBalance(t, b, "bob", 40)
}
