package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/interlock-go/interlock/core/reason"
)

// paid is how many payments are sent, three times each.
const paid = 100

// atATime is how many payments are under way at once: few enough that a busy machine
// answers them in time.
const atATime = 10

// repeats is the outcome of these payments.
type repeats struct {
	payments int

	// The answers.
	requests int // those of the third client count each time they are sent
	made     int // answered as carried out
	replayed int // answered with the stored response
	inFlight int // refused, since it was being carried out: the client tries again
	busy     int // refused, since the account was locked for too long (-wait)
	unclear  int // Redis did not answer the bank in time, or the bank the client

	// The payments.
	confirmed int   // answered with success
	open      int   // not confirmed, and perhaps made: an answer was unclear
	crossed   int   // confirmed, and their keys refused over gRPC
	uncrossed int   // confirmed, and not tried over gRPC, or without a clear answer
	wrong     int   // made twice, or not although nothing refused them, or with answers that differ
	failed    error // one of any other answers
	balance   int64 // of the account, afterwards
}

func (r repeats) expected() int64 { return openingBalance - int64(r.confirmed) }

// broken describes the promises that the idempotency engine did not keep. A payment
// that was refused, or not answered, breaks none.
func (r repeats) broken() error {
	err := r.failed
	if r.wrong > 0 {
		err = errors.Join(err, fmt.Errorf("payments: %d made twice, or lost", r.wrong))
	}
	if r.balance > r.expected() || r.balance < r.expected()-int64(r.open) {
		err = errors.Join(err, fmt.Errorf("payments: the balance is %d, want %d", r.balance, r.expected()))
	}
	if r.crossed+r.uncrossed != r.confirmed {
		err = errors.Join(err, fmt.Errorf("payments: %d of %d keys refused over gRPC", r.crossed, r.confirmed))
	}
	if r.confirmed == 0 {
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
	// A key that was forgotten would be that of a new payment.
	until := time.Now().Add(min(patience, d.retention*3/4))
	rest, rpc := d.clients[:len(d.clients)-1], d.clients[len(d.clients)-1]
	each := make([]payment, paid)
	for i := range each {
		each[i] = payment{payer: "carol", key: rand.Text(), account: d.alice, amount: 1}
	}
	replies := make([][]reply, paid)
	var mu sync.Mutex
	send := func(i, n int) reply {
		a := before(until, func() reply { return rest[(i+n)%len(rest)].pay(ctx, each[i]) })
		mu.Lock()
		defer mu.Unlock()
		replies[i] = append(replies[i], a)
		return a
	}
	atOnce := make(chan struct{}, atATime)
	var wg sync.WaitGroup
	for i := range each {
		atOnce <- struct{}{}
		wg.Go(func() {
			defer func() { <-atOnce }()
			first := make(chan struct{})
			go func() {
				defer close(first)
				send(i, 0)
			}()
			send(i, 1)
			<-first
		})
	}
	wg.Wait()
	late(ctx, until, func(i int) reply { return send(i, 2) })
	for i, p := range each {
		if r.note(replies[i]) {
			r.cross(persist(ctx, until, func() reply { return rpc.pay(ctx, p) }, reply.unclear))
		}
	}
	a := settled(ctx, func() reply { return rest[0].get(ctx, d.alice) })
	if !a.done() {
		return r, fmt.Errorf("read an account: %w", a.failure())
	}
	r.balance = a.account.Balance
	return r, nil
}

// late sends each payment until its outcome is known, a few payments at a time. On a
// fast machine it sends each once.
func late(ctx context.Context, until time.Time, send func(i int) reply) {
	todo := make([]int, paid)
	for i := range todo {
		todo[i] = i
	}
	for pause := firstPause; len(todo) > 0; pause = min(2*pause, lastPause) {
		again := make([]bool, paid)
		next := make(chan int)
		var wg sync.WaitGroup
		for range atATime {
			wg.Go(func() {
				for i := range next {
					a := send(i)
					again[i] = a.unclear() || a.refused()
				}
			})
		}
		for _, i := range todo {
			next <- i
		}
		close(next)
		wg.Wait()
		todo = slices.DeleteFunc(todo, func(i int) bool { return !again[i] })
		if time.Until(until) < pause || !sleep(ctx, pause) {
			return
		}
	}
}

// note counts the answers to one payment, and reports whether it was made.
func (r *repeats) note(answers []reply) (confirmed bool) {
	made, busy, unclear, ids := 0, 0, 0, make(map[string]bool)
	for _, a := range answers {
		r.requests++
		switch {
		case a.done() && a.replayed:
			r.replayed++
			ids[a.payment] = true
		case a.done():
			made++
			ids[a.payment] = true
		case a.reason == string(reason.InFlight):
			r.inFlight++
		case a.reason == string(reason.Held):
			busy++
		case a.unclear() || a.reason == "outcome-unknown":
			unclear++
		default:
			r.failed = fmt.Errorf("a payment was answered: %w", a.failure())
		}
	}
	r.made += made
	r.busy += busy
	r.unclear += unclear
	confirmed = len(ids) > 0
	switch {
	case confirmed:
		r.confirmed++
	case unclear > 0:
		r.open++
	}
	// Without an unclear answer, a payment that was made has one answer that says so,
	// and one that was not made was refused.
	if made > 1 || len(ids) > 1 || made == 0 && unclear == 0 && (confirmed || busy == 0) {
		r.wrong++
	}
	return confirmed
}

// cross counts the answers over gRPC to the key of a payment that was made over HTTP.
func (r *repeats) cross(a reply) {
	switch {
	case a.reason == string(reason.KeyReused):
		r.crossed++
	case a.unclear():
		r.uncrossed++
	case !a.done():
		r.failed = fmt.Errorf("a key of HTTP was answered over gRPC: %w", a.failure())
	}
}
