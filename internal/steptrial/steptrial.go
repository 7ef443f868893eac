// Package steptrial kills the processes of a handler with three effects, at each request to the store
// and before and after each effect, and counts the effects.
package steptrial

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/admin"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/idempotency/record"
)

// Trial is a number of orders. Each charges, books a room and mails. The bank and the mail deduplicate
// by the downstream key, the hotel does not.
type Trial struct {
	Store record.Store
	// Orders is the number of orders, and AtOnce the number of orders at a time.
	Orders, AtOnce int
	// Lease is the lease of a claim.
	Lease time.Duration
	// HandOver has the handler hand over after the first step, to a job.
	HandOver bool
	// Plain is the control: the handler has no steps.
	Plain bool
	Seed  uint64
}

// Report counts what happened.
type Report struct {
	Orders, Kills, Attempts, Resumed int // Resumed attempts began after a stored step
	Unknown                          int // outcomes that an operator settled
	ChargedTwice, BookedTwice, MailedTwice, Lost,
	CalledAgain int // calls of a service after its step was stored
	Wrong []string // answers that differ, and unknown outcomes outside of the step with Once
}

func (r *Report) add(of Report) {
	r.Kills += of.Kills
	r.Attempts += of.Attempts
	r.Resumed += of.Resumed
	r.Unknown += of.Unknown
	r.ChargedTwice += of.ChargedTwice
	r.BookedTwice += of.BookedTwice
	r.MailedTwice += of.MailedTwice
	r.Lost += of.Lost
	r.CalledAgain += of.CalledAgain
	r.Wrong = append(r.Wrong, of.Wrong...)
}

// String has all counts in a line.
func (r Report) String() string {
	return fmt.Sprintf("%d orders, %d kills, %d attempts, %d resumed, %d unknown; charged twice %d, booked twice %d, mailed twice %d, lost %d, "+
		"called again after its step was stored %d, wrong %d", r.Orders, r.Kills, r.Attempts, r.Resumed, r.Unknown, r.ChargedTwice, r.BookedTwice,
		r.MailedTwice, r.Lost, r.CalledAgain, len(r.Wrong))
}

// Run carries the orders out.
func (t Trial) Run(ctx context.Context) Report {
	total := Report{Orders: t.Orders}
	var mu sync.Mutex
	var all sync.WaitGroup
	next := make(chan int)
	for range t.AtOnce {
		all.Go(func() {
			for i := range next {
				o := &order{Trial: t, key: fmt.Sprintf("order-%d", i), draw: rand.New(rand.NewPCG(t.Seed, uint64(i))), effects: map[string]map[string]int{}} //nolint:gosec // a drawn trial
				o.run(ctx)
				mu.Lock()
				total.add(o.report)
				mu.Unlock()
			}
		})
	}
	for i := range t.Orders {
		next <- i
	}
	close(next)
	all.Wait()
	return total
}

// order is one order, with the services that it calls.
type order struct {
	Trial
	key    string
	draw   *rand.Rand
	report Report

	mu      sync.Mutex
	effects map[string]map[string]int // of a service, by key
	rooms   []string
	stored  map[string]bool // steps with a result that the handler has had
	tickets []idempotency.Ticket
}

// events is more than the number of events of an attempt.
const events = 24

// run sends the order until it has its answer, and checks it.
func (o *order) run(ctx context.Context) {
	o.stored = map[string]bool{}
	answer := ""
	for n := 0; answer == ""; n++ {
		if n == 200 {
			o.report.Lost++
			return
		}
		p := &process{order: o}
		if n < 3 {
			p.left = 1 + o.draw.IntN(events)
		}
		o.report.Attempts++
		answer = p.attempt(ctx)
		switch {
		case p.isDead():
			o.report.Kills++
			answer = ""
			time.Sleep(o.Lease)
		case answer == "":
			time.Sleep(o.Lease / 4)
		}
	}
	again := ""
	for n := 0; again == "" && n < 200; n++ { // a server under load may have the answer a little later
		if again = (&process{order: o}).attempt(ctx); again == "" {
			time.Sleep(o.Lease / 4)
		}
	}
	if again != answer {
		o.wrong("the answer is %q, and later %q", answer, again)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.rooms) == 0 || answer != "charged "+o.rooms[0]+" mailed" {
		o.wrong("the answer is %q, and the rooms are %v", answer, o.rooms)
	}
	o.report.BookedTwice += max(0, len(o.rooms)-1)
	o.report.ChargedTwice += max(0, len(o.effects["charge"])-1)
	o.report.MailedTwice += max(0, len(o.effects["mail"])-1)
}

func (o *order) wrong(format string, args ...any) {
	o.report.Wrong = append(o.report.Wrong, o.key+": "+fmt.Sprintf(format, args...))
}

// process is a process that dies at an event; left is the number of events until then.
type process struct {
	*order
	mu   sync.Mutex
	left int // 0: it does not die
	dead bool
}

var errDead = fmt.Errorf("%w: the process is dead", driver.ErrUnavailable)

// event reports whether the process is dead, and kills it when its time has come.
func (p *process) event() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.left > 0 {
		p.left--
		p.dead = p.dead || p.left == 0
	}
	return p.dead
}

func (p *process) isDead() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dead
}

// attempt sends the order, or brings its ticket to a job. It returns the final answer, or nothing.
func (p *process) attempt(ctx context.Context) string {
	e, err := idempotency.New(&cut{p.Store, p}, idempotency.Global(), idempotency.Lease(p.Lease))
	if err != nil {
		panic(err)
	}
	defer func() {
		gone, cancel := context.WithTimeout(ctx, 2*p.Lease) // a process that is dead, or dies here, does not end its work
		defer cancel()
		_ = e.Close(gone)
	}()
	if len(p.tickets) > 0 {
		ticket := p.tickets[len(p.tickets)-1]
		answer := ""
		err := e.TakeOver(ctx, ticket, func(ctx context.Context) (endpoint.Response, error) {
			var err error
			answer, err = p.carryOut(ctx)
			return endpoint.Response{Status: 201, Body: []byte(answer)}, err
		})
		switch {
		case err == nil:
			return answer
		case errors.Is(err, idempotency.ErrTicketTaken) || p.isDead():
			return ""
		case errors.Is(err, idempotency.ErrOutcomeUnknown):
			p.settle(ctx, e)
			return ""
		}
	}
	body := ""
	verdict := e.Do(ctx, call{key: p.key}, endpoint.Handler{Run: func(ctx context.Context, _ endpoint.Attempt) (endpoint.Response, bool) {
		if p.HandOver {
			return p.handOver(ctx), true
		}
		answer, err := p.carryOut(ctx)
		if err != nil {
			return endpoint.Response{Status: 500}, true
		}
		body = answer
		return endpoint.Response{Status: 201, Body: []byte(answer)}, true
	}})
	switch {
	case verdict.Replay != nil && verdict.Replay.Status == 201:
		return string(verdict.Replay.Body)
	case verdict.Refusal != nil && !p.isDead():
		if errors.Is(verdict.Refusal.Err, idempotency.ErrOutcomeUnknown) && !verdict.Refusal.Ran {
			p.settle(ctx, e)
		}
		return ""
	case verdict.Refusal != nil:
		return ""
	}
	return body
}

// handOver charges, and gives the rest to a job.
func (p *process) handOver(ctx context.Context) endpoint.Response {
	if _, err := p.step(ctx, "charge", p.charge); err != nil {
		return endpoint.Response{Status: 500}
	}
	ticket, err := idempotency.HandOver(ctx, p.Lease)
	if err != nil || p.event() {
		return endpoint.Response{Status: 500}
	}
	p.order.mu.Lock()
	p.tickets = append(p.tickets, ticket)
	p.order.mu.Unlock()
	return endpoint.Response{Status: 202}
}

// carryOut is the handler, or the job.
func (p *process) carryOut(ctx context.Context) (string, error) {
	charged, err := p.step(ctx, "charge", p.charge)
	if err != nil {
		return "", err
	}
	room, err := p.step(ctx, "book", p.book, idempotency.Once())
	if err != nil {
		return "", err
	}
	mailed, err := p.step(ctx, "mail", p.mail)
	return charged + " " + room + " " + mailed, err
}

func (p *process) step(ctx context.Context, name string, f func(context.Context) (string, error), opts ...idempotency.StepOption) (string, error) {
	if p.Plain {
		return f(ctx)
	}
	called := false
	result, err := idempotency.Step(ctx, name, func(ctx context.Context) (string, error) {
		called = true
		return f(ctx)
	}, opts...)
	p.order.mu.Lock()
	defer p.order.mu.Unlock()
	if called && p.stored[name] {
		p.report.CalledAgain++
	}
	if err == nil {
		if !called && name == "charge" {
			p.report.Resumed++
		}
		p.stored[name] = true
	}
	return result, err
}

func (p *process) charge(ctx context.Context) (string, error) {
	return "charged", p.effect(ctx, "charge")
}

func (p *process) mail(ctx context.Context) (string, error) { return "mailed", p.effect(ctx, "mail") }

// effect is an effect of a service that deduplicates.
func (p *process) effect(ctx context.Context, service string) error {
	if p.event() {
		return errDead
	}
	key := idempotency.DownstreamKey(ctx)
	p.order.mu.Lock()
	if p.effects[service] == nil {
		p.effects[service] = map[string]int{}
	}
	p.effects[service][key]++
	p.order.mu.Unlock()
	if p.event() {
		return errDead
	}
	return nil
}

// book is an effect of a service that does not deduplicate.
func (p *process) book(context.Context) (string, error) {
	if p.event() {
		return "", errDead
	}
	p.order.mu.Lock()
	room := fmt.Sprintf("room-%d", len(p.rooms)+1)
	p.rooms = append(p.rooms, room)
	p.order.mu.Unlock()
	if p.event() {
		return "", errDead
	}
	return room, nil
}

// settle is the operator, who looks into the books of the hotel.
func (p *process) settle(ctx context.Context, e *idempotency.Engine) {
	p.report.Unknown++
	if lister, ok := p.Store.(record.Lister); ok && p.draw.IntN(20) == 0 { // a list has the records of all orders
		for v, err := range lister.ListRecords(ctx, "", true) {
			if err == nil && v.State == record.StateUnknown && v.Open != "book" {
				p.wrong("the outcome is unknown, and the open step is %q", v.Open)
			}
		}
	}
	found := admin.NotCarriedOut()
	p.order.mu.Lock()
	if len(p.rooms) > 0 {
		result, _ := json.Marshal(p.rooms[0])
		found = admin.StepDone("book", result)
	}
	p.order.mu.Unlock()
	if err := e.Resolve(ctx, "", p.key, found); err != nil && !errors.Is(err, driver.ErrUnavailable) {
		p.wrong("Resolve: %v", err)
	}
}

// call is a request.
type call struct{ key string }

func (c call) Protocol() string                 { return endpoint.HTTP }
func (c call) Key() (string, error)             { return c.key, nil }
func (c call) Target() (string, string, string) { return "POST", "/orders", "" }
func (c call) Origin() (string, string, string) { return "shop", "/orders", "" }
func (c call) Route() (string, bool)            { return "/orders", true }
func (c call) Param(string) (string, error)     { return "", nil }
func (c call) Header(string) []string           { return nil }
func (c call) Query(string) []string            { return nil }
func (c call) Native() any                      { return c }
func (c call) Value(any) any                    { return nil }
func (c call) Body(int64) ([]byte, error)       { return []byte(c.key), nil }

// Check reports effects that came twice, answers that are missing or differ, and kills that did
// nothing.
func (r Report) Check(tb interface {
	Helper()
	Log(args ...any)
	Errorf(format string, args ...any)
},
) {
	tb.Helper()
	tb.Log(r)
	if r.ChargedTwice+r.BookedTwice+r.MailedTwice+r.Lost+r.CalledAgain+len(r.Wrong) > 0 {
		tb.Errorf("%v; want each effect once, and one answer: %q", r, r.Wrong[:min(len(r.Wrong), 3)])
	}
	if r.Kills < r.Orders || r.Resumed < r.Orders/10 || r.Unknown == 0 {
		tb.Errorf("%v; want more kills, resumed orders and unknown outcomes", r)
	}
}
