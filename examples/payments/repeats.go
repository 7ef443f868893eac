package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
)

// paid is how many payments are sent, three times each.
const paid = 100

// repeats is the outcome of these payments.
type repeats struct {
	payments int
	requests int
	made     int   // answered as carried out
	replayed int   // answered with the stored response
	inFlight int   // refused, since it was being carried out: the client tries again
	busy     int   // refused, since the account was locked for too long (-wait)
	crossed  int   // keys refused over gRPC
	wrong    int   // payments that were made twice, or not although nothing refused them, or whose answers differ
	failed   error // one of any other answers
	balance  int64 // of the account, afterwards
}

func (r repeats) expected() int64 { return openingBalance - int64(r.made) }

// broken describes the promises that the idempotency engine did not keep.
func (r repeats) broken() error {
	err := r.failed
	if r.wrong > 0 {
		err = errors.Join(err, fmt.Errorf("payments: %d made twice, or lost", r.wrong))
	}
	if r.balance != r.expected() {
		err = errors.Join(err, fmt.Errorf("payments: the balance is %d, want %d", r.balance, r.expected()))
	}
	if r.crossed != r.made {
		err = errors.Join(err, fmt.Errorf("payments: %d of %d keys refused over gRPC", r.crossed, r.made))
	}
	if r.made == 0 {
		err = errors.Join(err, errors.New("payments: none was made"))
	}
	return err
}

// paymentsThreeTimes sends every payment through each HTTP front end: through two
// at once, and through the third when all have been answered. Then it tries the
// keys over gRPC.
func (d *demonstration) paymentsThreeTimes(ctx context.Context) (repeats, error) {
	r := repeats{payments: paid}
	if err := d.openAccounts(ctx, d.alice); err != nil {
		return r, err
	}
	rest, rpc := d.clients[:len(d.clients)-1], d.clients[len(d.clients)-1]
	each := make([]payment, paid)
	for i := range each {
		each[i] = payment{payer: "carol", key: rand.Text(), account: d.alice, amount: 1}
	}
	replies := make([][3]reply, paid)
	send := func(rounds ...int) {
		start := make(chan struct{})
		var wg sync.WaitGroup
		for i, p := range each {
			for _, n := range rounds {
				wg.Go(func() {
					<-start
					replies[i][n] = persist(ctx, rest[(i+n)%len(rest)], p)
				})
			}
		}
		close(start)
		wg.Wait()
	}
	send(0, 1)
	send(2)
	for _, three := range replies {
		r.note(three[:])
	}
	for i, p := range each {
		if replies[i][2].reason == string(core.ReasonHeld) {
			continue // never made, so its key is still new
		}
		switch a := rpc.pay(ctx, p); {
		case a.reason == string(idempotency.ReasonKeyReused):
			r.crossed++
		case !a.done():
			r.failed = fmt.Errorf("a key of HTTP was answered over gRPC: %w", a.failure())
		}
	}
	a := rest[0].get(ctx, d.alice)
	if !a.done() {
		return r, fmt.Errorf("read an account: %w", a.failure())
	}
	r.balance = a.account.Balance
	return r, nil
}

// persist sends a payment, and sends it again while its record cannot be reached
// (503), as on a machine that is busy: the key makes that safe.
func persist(ctx context.Context, c client, p payment) (r reply) {
	for range 5 {
		if r = c.pay(ctx, p); r.reason != string(idempotency.ReasonNoRecord) {
			break
		}
	}
	return r
}

// note counts the answers to one payment.
func (r *repeats) note(answers []reply) {
	made, busy, ids := 0, 0, make(map[string]bool)
	for _, a := range answers {
		r.requests++
		switch {
		case a.done() && a.replayed:
			r.replayed++
			ids[a.payment] = true
		case a.done():
			made++
			ids[a.payment] = true
		case a.reason == string(idempotency.ReasonInFlight):
			r.inFlight++
		case a.reason == string(core.ReasonHeld):
			busy++
		default:
			r.failed = fmt.Errorf("a payment was answered: %w", a.failure())
		}
	}
	r.made += made
	r.busy += busy
	if made != len(ids) || made > 1 || made == 0 && busy == 0 {
		r.wrong++
	}
}
