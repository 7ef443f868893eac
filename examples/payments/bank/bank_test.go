package bank_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/interlock-go/interlock/core/fencing/redisfence"
	"github.com/interlock-go/interlock/examples/payments/bank"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// noWork takes no time, and as what begins a payment it lets it go on.
func noWork(context.Context) error { return nil }

// open returns an empty bank, on a server that is the test's own.
func open(t *testing.T, work func(context.Context) error) (*bank.Bank, *redis.Client) {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	return bank.New(rdb, work), rdb
}

func held(id string, token int64) bank.Held { return bank.Held{ID: id, Token: token} }

func put(t *testing.T, b *bank.Bank, token int64, balances map[string]int64) {
	t.Helper()
	for id, balance := range balances {
		if _, err := b.Put(t.Context(), held(id, token), balance); err != nil {
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
	t.Parallel()
	b, rdb := open(t, noWork)
	put(t, b, 1, map[string]int64{"alice": 100, "bob": 5})
	if a, err := b.Debit(t.Context(), held("alice", 2), 30); err != nil || a != (bank.Account{ID: "alice", Balance: 70}) {
		t.Errorf("debit: %+v, %v", a, err)
	}
	rdb.ScriptFlush(t.Context())
	// The same token again: a holder may change an account twice.
	from, to, err := b.Transfer(t.Context(), held("alice", 2), held("bob", 1), 20)
	if err != nil || from != (bank.Account{ID: "alice", Balance: 50}) || to != (bank.Account{ID: "bob", Balance: 25}) {
		t.Errorf("transfer: %+v, %+v, %v", from, to, err)
	}
	wantBalance(t, b, "alice", 50)
	wantBalance(t, b, "bob", 25)
	if err := b.Forget(t.Context(), "alice"); err != nil {
		t.Error(err)
	}
	if _, err := b.Get(t.Context(), "alice"); !errors.Is(err, bank.ErrUnknownAccount) {
		t.Errorf("forgotten: %v", err)
	}
}

func TestRefusedChangesChangeNothing(t *testing.T) {
	t.Parallel()
	b, rdb := open(t, noWork)
	put(t, b, 10, map[string]int64{"alice": 100, "bob": 0, "rich": bank.MaxAmount})
	ctx := t.Context()
	debit := func(id string, token, amount int64) error {
		_, err := b.Debit(ctx, held(id, token), amount)
		return err
	}
	unsafe := func(id string, amount int64) error { _, err := b.DebitUnsafe(ctx, id, amount); return err }
	transfer := func(from, to bank.Held, amount int64) error {
		_, _, err := b.Transfer(ctx, from, to, amount)
		return err
	}
	create := func(id string, token, balance int64) error {
		_, err := b.Put(ctx, held(id, token), balance)
		return err
	}
	for name, c := range map[string]struct{ got, want error }{
		"put, stale":                   {create("alice", 9, 1), bank.ErrStaleToken},
		"debit, stale":                 {debit("alice", 9, 1), bank.ErrStaleToken},
		"from a stale one":             {transfer(held("alice", 9), held("bob", 20), 1), bank.ErrStaleToken},
		"to a stale one":               {transfer(held("alice", 20), held("bob", 9), 1), bank.ErrStaleToken},
		"more than there is":           {debit("alice", 10, 101), bank.ErrInsufficientFunds},
		"more than there is, unsafely": {unsafe("alice", 101), bank.ErrInsufficientFunds},
		"transfer of more":             {transfer(held("alice", 10), held("bob", 10), 101), bank.ErrInsufficientFunds},
		"above the highest balance":    {transfer(held("alice", 10), held("rich", 10), 1), bank.ErrInvalid},
		"unknown debit":                {debit("unknown", 1, 1), bank.ErrUnknownAccount},
		"unknown unsafe debit":         {unsafe("unknown", 1), bank.ErrUnknownAccount},
		"transfer to an unknown one":   {transfer(held("alice", 10), held("unknown", 1), 1), bank.ErrUnknownAccount},
		"amount 0":                     {debit("alice", 10, 0), bank.ErrInvalid},
		"amount -1":                    {unsafe("alice", -1), bank.ErrInvalid},
		"amount too large":             {debit("alice", 10, bank.MaxAmount+1), bank.ErrInvalid},
		"to oneself":                   {transfer(held("alice", 10), held("alice", 10), 1), bank.ErrInvalid},
		"negative balance":             {create("alice", 10, -1), bank.ErrInvalid},
		"no id":                        {create("", 10, 1), bank.ErrInvalid},
		"id with a brace":              {create("a}b", 10, 1), bank.ErrInvalid},
		"id of 65":                     {create(strings.Repeat("a", 65), 10, 1), bank.ErrInvalid},
	} {
		if !errors.Is(c.got, c.want) {
			t.Errorf("%s: %v, want %v", name, c.got, c.want)
		}
	}
	wantBalance(t, b, "alice", 100)
	wantBalance(t, b, "bob", 0)
	wantBalance(t, b, "rich", bank.MaxAmount)
	// A refused transfer claims neither side, or it would turn away a rightful holder.
	if token := rdb.HGet(ctx, "payments:{ledger}:account:alice", redisfence.Field).Val(); token != "10" {
		t.Errorf("alice is claimed for token %s, want 10", token)
	}
}

// paused is work that signals its beginning and ends on a signal.
func paused() (work func(context.Context) error, begun <-chan struct{}, proceed func()) {
	b, p := make(chan struct{}), make(chan struct{})
	return func(context.Context) error {
		close(b)
		<-p
		return nil
	}, b, sync.OnceFunc(func() { close(p) })
}

// A holder wakes up between its successor's read and write. Were it let in, its own update
// would be lost although its client had an answer of success.
func TestAPausedHolderCannotWriteBehindItsSuccessorsRead(t *testing.T) {
	t.Parallel()
	staleWork, staleBegun, wakeStale := paused()
	stale, rdb := open(t, staleWork)
	work, begun, proceed := paused()
	successor := bank.New(rdb, work)
	put(t, successor, 1, map[string]int64{"alice": 100, "bob": 0})
	result, successorResult := make(chan error, 1), make(chan error, 1)
	go func() {
		_, _, err := stale.Transfer(t.Context(), held("alice", 2), held("bob", 2), 10)
		result <- err
	}()
	<-staleBegun
	go func() {
		_, err := successor.Debit(t.Context(), held("alice", 3), 1)
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

// Without a lock, of two debits one is lost, and a report sees half a transfer.
func TestWhatGoesWrongWithoutALock(t *testing.T) {
	t.Parallel()
	work, begun, proceed := paused()
	slow, rdb := open(t, work)
	quick := bank.New(rdb, noWork)
	put(t, quick, 1, map[string]int64{"alice": 100, "bob": 100})
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

	work, begun, proceed = paused()
	var one, other bank.Account
	go func() {
		var err error
		one, other, err = bank.New(rdb, work).Report(t.Context(), "alice", "bob")
		result <- err
	}()
	<-begun
	_, _, quickErr = quick.Transfer(t.Context(), held("alice", 2), held("bob", 2), 10)
	proceed()
	if err := errors.Join(quickErr, <-result); err != nil || one.Balance != 90 || other.Balance != 110 { // and not 190 or 200
		t.Errorf("%+v, %+v, %v", one, other, err)
	}
}

func TestNothingIsWrittenWhenTheContextEndsDuringTheWork(t *testing.T) {
	t.Parallel()
	lost := errors.New("lease lost")
	ctx, cancel := context.WithCancelCause(t.Context())
	b, rdb := open(t, func(ctx context.Context) error {
		cancel(lost)
		return bank.Work(time.Hour)(ctx)
	})
	put(t, b, 1, map[string]int64{"alice": 100})
	if _, err := b.Debit(ctx, held("alice", 2), 1); !errors.Is(err, lost) {
		t.Errorf("got %v, want the context's cause", err)
	}
	wantBalance(t, bank.New(rdb, noWork), "alice", 100)
}

func order(token, amount int64, reference string) bank.Order {
	return bank.Order{Account: held("alice", token), Amount: amount, Reference: reference, Remember: time.Hour}
}

func TestAReferenceIsOnePayment(t *testing.T) {
	t.Parallel()
	b, _ := open(t, noWork)
	put(t, b, 1, map[string]int64{"alice": 100, "bob": 100})
	// Two of one reference have both seen that it is new: the ledger lets one be.
	var inner bank.Payment
	first, err := b.Pay(t.Context(), order(2, 60, "a"), func(ctx context.Context) (err error) {
		inner, err = b.Pay(ctx, order(2, 60, "a"), noWork)
		return err
	})
	if err != nil || first != inner || first.ID == "" || first.Account != "alice" || first.Amount != 60 || first.Balance != 40 {
		t.Fatalf("%+v and %+v, %v", first, inner, err)
	}
	// The rest of the time would not be enough for another one, and it does not begin.
	again, err := b.Pay(t.Context(), order(3, 60, "a"), func(context.Context) error {
		t.Error("begun again")
		return nil
	})
	if err != nil || again != first {
		t.Errorf("again: %+v, %v, want %+v", again, err, first)
	}
	of := order(2, 60, "a")
	of.Account.ID = "bob"
	for what, o := range map[string]bank.Order{"another amount": order(3, 59, "a"), "another account": of} {
		if _, err := b.Pay(t.Context(), o, noWork); !errors.Is(err, bank.ErrReferenceReused) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if other, err := b.Pay(t.Context(), order(3, 30, "b"), noWork); err != nil || other.ID == first.ID || other.Balance != 10 {
		t.Errorf("another reference: %+v, %v", other, err)
	}
	wantBalance(t, b, "bob", 100)
}

func TestPaymentsThatHaveNoEffect(t *testing.T) {
	t.Parallel()
	b, _ := open(t, noWork)
	put(t, b, 10, map[string]int64{"alice": 100})
	no := errors.New("no")
	fenced := func(ctx context.Context) error { // the account changes hands meanwhile
		_, err := b.Debit(ctx, held("alice", 12), 1)
		return err
	}
	for _, c := range []struct {
		order bank.Order
		begin func(context.Context) error
		want  error
	}{
		{order(11, 1, "a"), func(context.Context) error { return no }, no},
		{order(11, 101, "a"), noWork, bank.ErrInsufficientFunds},
		{order(11, 0, "a"), noWork, bank.ErrInvalid},
		{order(9, 1, "a"), noWork, bank.ErrStaleToken},
		{order(11, 1, "a"), fenced, bank.ErrStaleToken},
	} {
		if _, err := b.Pay(t.Context(), c.order, c.begin); !errors.Is(err, c.want) {
			t.Errorf("%+v: %v, want %v", c.order, err, c.want)
		}
	}
	wantBalance(t, b, "alice", 99)
	if p, err := b.Pay(t.Context(), order(12, 1, "a"), noWork); err != nil || p.Balance != 98 {
		t.Errorf("none of them has used up the reference: %+v, %v", p, err)
	}
}
