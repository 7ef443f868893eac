package bank_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/examples/payments/bank"
	"github.com/interlock-go/interlock/internal/redistest"
)

// begin lets a payment go on.
func begin(context.Context) error { return nil }

func order(token, amount int64, reference string) bank.Order {
	return bank.Order{Account: bank.Held{ID: "alice", Token: token}, Amount: amount, Reference: reference, Remember: time.Hour}
}

func TestAReferenceIsOnePayment(t *testing.T) {
	b, _ := open(t, noWork)
	put(t, b, 1, map[string]int64{"alice": 100, "bob": 100})
	first, err := b.Pay(t.Context(), order(2, 60, "a"), begin)
	if err != nil || first.ID == "" || first.Account != "alice" || first.Amount != 60 || first.Balance != 40 {
		t.Fatalf("%+v, %v", first, err)
	}
	// What is left would not be enough for another one, and it does not begin.
	again, err := b.Pay(t.Context(), order(3, 60, "a"), func(context.Context) error {
		t.Error("begun again")
		return nil
	})
	if err != nil || again != first {
		t.Errorf("again: %+v, %v, want %+v", again, err, first)
	}
	if _, err := b.Pay(t.Context(), order(3, 59, "a"), begin); !errors.Is(err, bank.ErrReferenceReused) {
		t.Errorf("another amount: %v", err)
	}
	of := order(2, 60, "a")
	of.Account.ID = "bob"
	if _, err := b.Pay(t.Context(), of, begin); !errors.Is(err, bank.ErrReferenceReused) {
		t.Errorf("another account: %v", err)
	}
	if other, err := b.Pay(t.Context(), order(3, 30, "b"), begin); err != nil || other.ID == first.ID || other.Balance != 10 {
		t.Errorf("another reference: %+v, %v", other, err)
	}
	wantBalance(t, b, "alice", 10)
	wantBalance(t, b, "bob", 100)
}

// Two of one reference have both seen that it is new: the ledger lets one be.
func TestTwoOfOneReferenceAtOnce(t *testing.T) {
	b, _ := open(t, noWork)
	put(t, b, 1, map[string]int64{"alice": 100})
	var inner bank.Payment
	outer, err := b.Pay(t.Context(), order(2, 60, "a"), func(ctx context.Context) (err error) {
		inner, err = b.Pay(ctx, order(2, 60, "a"), begin)
		return err
	})
	if err != nil || outer != inner || outer.Balance != 40 {
		t.Errorf("%+v and %+v, %v", inner, outer, err)
	}
	wantBalance(t, b, "alice", 40)
}

func TestPaymentsThatHaveNoEffect(t *testing.T) {
	b, _ := open(t, noWork)
	put(t, b, 10, map[string]int64{"alice": 100})
	no := errors.New("no")
	if _, err := b.Pay(t.Context(), order(11, 1, "a"), func(context.Context) error { return no }); !errors.Is(err, no) {
		t.Errorf("one that may not begin: %v", err)
	}
	forgotten, nobody := order(11, 1, "a"), order(11, 1, "a")
	forgotten.Remember, nobody.Account.ID = 0, "nobody"
	for what, c := range map[string]struct {
		bank.Order
		want error
	}{
		"too much":       {order(11, 101, "a"), bank.ErrInsufficientFunds},
		"nothing":        {order(11, 0, "a"), bank.ErrInvalid},
		"stale":          {order(9, 1, "a"), bank.ErrStaleToken},
		"nobody's":       {nobody, bank.ErrUnknownAccount},
		"unnamed":        {order(11, 1, ""), nil},
		"soon forgotten": {forgotten, nil},
	} {
		if _, err := b.Pay(t.Context(), c.Order, begin); err == nil || c.want != nil && !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", what, err, c.want)
		}
	}
	// The account changes hands while it is paid from.
	_, err := b.Pay(t.Context(), order(11, 1, "a"), func(ctx context.Context) error {
		_, err := b.Debit(ctx, bank.Held{ID: "alice", Token: 12}, 1)
		return err
	})
	if !errors.Is(err, bank.ErrStaleToken) {
		t.Errorf("fenced off: %v", err)
	}
	wantBalance(t, b, "alice", 99)
	if p, err := b.Pay(t.Context(), order(12, 1, "a"), begin); err != nil || p.Balance != 98 {
		t.Errorf("none of them has used up the reference: %+v, %v", p, err)
	}
}

// Unlike a debit's, a payment's write is sent again when its reply is lost, even
// if the account has changed hands since: the reference tells that it was made.
func TestAPaymentWhoseReplyIsLostIsFoundByItsReference(t *testing.T) {
	server := redistest.Start(t)
	successor := bank.New(server.Client(t), noWork)
	put(t, successor, 1, map[string]int64{"alice": 101})
	// The scripts must be known to the server: it is not its refusal of an
	// unknown one that shall get lost.
	if _, err := successor.Pay(t.Context(), order(1, 1, "warm"), begin); err != nil {
		t.Fatal(err)
	}
	cut := &replyCutter{meanwhile: func() {
		if _, err := successor.Debit(t.Context(), bank.Held{ID: "alice", Token: 3}, 1); err != nil {
			t.Error(err)
		}
	}}
	b := bank.New(server.Client(t, func(o *redis.Options) { o.Dialer = cut.dial }), noWork)
	p, err := b.Pay(t.Context(), order(2, 10, "a"), func(context.Context) error {
		cut.armed.Store(true)
		return nil
	})
	if err != nil || p.Balance != 90 {
		t.Errorf("%+v, %v", p, err)
	}
	wantBalance(t, successor, "alice", 89)
}
