package idemcases

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/interlock-go/interlock/core/adapter/adaptertest"
	"github.com/interlock-go/interlock/core/gather"
	"github.com/interlock-go/interlock/core/reason"
)

// batchSize is the number of requests that share a section: it begins when so many have come.
const batchSize = 3

// Item is an item of a batch: a run of a handler by its number.
type Item struct {
	Number int
	Amount int64
}

// errNoMoney is the error of an item that the section refuses.
var errNoMoney = errors.New("no money")

// ofOneBatch are the options of a group with batches of batchSize items.
var ofOneBatch = []gather.Option{gather.Most(batchSize), gather.Linger(time.Hour)}

// shares serves a handler that brings the amount of its request to a section. After the amount failing
// the handler fails the first time.
func (f *fixture) shares(failing int64, do func(ctx context.Context, key string, item Item) (string, error)) *served {
	f.Helper()
	var mu sync.Mutex
	failed := false
	s := &adaptertest.Service{
		Route: "/accounts/{id}/payments", Layers: []adaptertest.Layer{{Idempotent: f.engine()}},
		Handler: func(ctx context.Context, call *adaptertest.Call) error {
			amount, err := call.Amount()
			if err != nil {
				f.Errorf("the handler does not read its request: %v", err)
			}
			number := f.ledger.begin()
			text, err := do(ctx, "account/"+call.Param("id"), Item{number, amount})
			if errors.Is(err, errNoMoney) {
				return call.Answer(adaptertest.Declined, errNoMoney.Error())
			}
			if err != nil {
				f.Errorf("the item of %d: %v; want its result", amount, err)
				return call.Answer(adaptertest.Failed, "failed")
			}
			mu.Lock()
			fails := amount == failing && !failed
			failed = failed || fails
			mu.Unlock()
			if fails {
				return call.Answer(adaptertest.Failed, "failed later")
			}
			f.ledger.answer(number, kept(adaptertest.OK, text))
			return call.Answer(adaptertest.OK, text)
		},
	}
	return &served{f, s, f.Start(f, s)}
}

// payAll sends a payment of each amount, with a key by the amount, at the same time.
func (e *served) payAll(amounts ...int64) []reply {
	answers := make([]reply, len(amounts))
	var all sync.WaitGroup
	for i, amount := range amounts {
		all.Go(func() { answers[i] = e.payAmount(amount) })
	}
	all.Wait()
	return answers
}

func (e *served) payAmount(amount int64) reply {
	return e.call(payment{keys: []string{fmt.Sprint("k", amount)}, amount: amount})
}

func isPaid(amount int64) reply { return reply{Text: fmt.Sprint("paid ", amount)} }

func wasPaid(amount int64) reply { return reply{Text: fmt.Sprint("paid ", amount), Replayed: true} }

// wantAll holds answers against those wanted.
func (f *fixture) wantAll(what string, got []reply, want ...reply) {
	f.Helper()
	for i := range want {
		f.want(fmt.Sprint(what, ", request ", i+1), got[i], want[i])
	}
}

// gatheredCases are the cases of endpoints with requests that share a section.
var gatheredCases = []row{
	{name: "requests that share a section get their own answers", where: outside, run: func(f *fixture) {
		var mu sync.Mutex
		items := map[int64]int{}
		batches := 0
		each := gather.Each(func(_ context.Context, _ string, item Item) (string, error) {
			mu.Lock()
			defer mu.Unlock()
			if items[item.Amount]++; item.Amount == 13 {
				return "", errNoMoney
			}
			return fmt.Sprint("paid ", item.Amount), nil
		})
		group := gather.New(f.locker(), func(ctx context.Context, key string, batch []Item) ([]string, error) {
			if batches++; len(batch) != batchSize {
				f.Errorf("a batch of %d items; want %d", len(batch), batchSize)
			}
			return each(ctx, key, batch)
		}, ofOneBatch...)
		const declined, failing = 13, 6
		e := f.shares(failing, group.Do)
		first := make(chan reply, 1)
		go func() { first <- e.payAmount(1) }()
		f.eventually("the handler runs", func() bool { return e.Runs() == 1 })
		f.want("a duplicate while its request waits for the batch", e.payAmount(1), refused(reason.InFlight))
		poor := reply{Result: adaptertest.Declined, Text: errNoMoney.Error()}
		f.wantAll("one batch", append(e.payAll(2, declined), <-first), isPaid(2), poor, isPaid(1))
		poor.Replayed = true
		f.wantAll("again", e.payAll(1, 2, declined), wasPaid(1), wasPaid(2), poor)
		f.wantAll("a handler fails later", e.payAll(4, 5, failing), isPaid(4), isPaid(5), reply{Result: adaptertest.Failed, Text: "failed later"})
		f.wantAll("its retry", e.payAll(4, failing, 7, 8), wasPaid(4), isPaid(failing), isPaid(7), isPaid(8))
		if batches != 3 || fmt.Sprint(items) != "map[1:1 2:1 4:1 5:1 6:2 7:1 8:1 13:1]" {
			f.Errorf("%d batches with the items %v; want 3 with one item for each run of a handler", batches, items)
		}
	}},
	{name: "requests that share a transaction commit together", where: inside, run: func(f *fixture) {
		const failing = 6
		do := f.ledger.Gather(f, f.locker(), ofOneBatch...)
		e := f.shares(failing, func(ctx context.Context, key string, item Item) (string, error) {
			return fmt.Sprint("paid ", item.Amount), do(ctx, key, item.Number)
		})
		f.wantAll("one batch", e.payAll(1, 2, 3), isPaid(1), isPaid(2), isPaid(3))
		f.wantAll("again", e.payAll(1, 2, 3), wasPaid(1), wasPaid(2), wasPaid(3))
		f.wantAll("a handler fails", e.payAll(4, 5, failing), refused(reason.RolledBack), refused(reason.RolledBack),
			reply{Result: adaptertest.Failed, Text: "failed later"})
		f.wantAll("the retries", e.payAll(4, 5, failing), isPaid(4), isPaid(5), isPaid(failing))
	}},
}
