package idemcases

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/adapter/adaptertest"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/reason"
	"github.com/interlock-go/interlock/internal/testkit"
)

// payment is a request to an endpoint.
type payment struct {
	keys      []string // the values of the key: none, one, or malformed ones
	principal string   // "" is alice
	account   string   // "" is 42
	amount    int64
	padding   int // how many bytes more the request has
}

// reply is the reply to a request.
type reply struct {
	Result   adaptertest.Result
	Text     string
	Replayed bool
	Refusal  reason.Reason // of the middleware's own; then nothing else is set
}

func fresh(n int) reply { return reply{Text: fmt.Sprint("payment ", n)} }

func replayed(n int) reply { return reply{Text: fmt.Sprint("payment ", n), Replayed: true} }

func refused(r reason.Reason) reply { return reply{Refusal: r} }

// fixture is the environment of one case of one framework.
type fixture struct {
	*testing.T
	adaptertest.Framework
	Records
	store  idempotency.Store
	ledger *ledger // nil: effects are not in the transaction of the request
	lasts  bool    // no case kills the server
}

func newFixture(t *testing.T, a adaptertest.Framework, records Records) *fixture {
	return &fixture{T: t, Framework: a, Records: records, store: records.Store(t, "interlock")}
}

// engine returns an engine with keys that belong to principals. The principals of the
// frameworks are different: a claim of the previous case may still be under way after its
// caller has left.
func (f *fixture) engine(opts ...idempotency.Option) *idempotency.Engine {
	f.Helper()
	store := f.store
	if f.lasts {
		store = patient{store}
	}
	scope := idempotency.Scope(func(_ context.Context, r core.Request) (string, error) {
		who := strings.Join(r.Header("Authorization"), ",")
		if who != "" {
			who = f.Label + "/" + who
		}
		return who, nil
	})
	return testkit.EngineOn(f, store, append([]idempotency.Option{scope}, opts...)...)
}

// locker returns a locker on the locks that go with the records.
func (f *fixture) locker() *core.Locker {
	f.Helper()
	l, err := core.New(f.Locks(f), core.Unlisted()) // the work of a server is counted
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = l.Close(context.Background()) })
	return l
}

// loseLock deletes the lock of account 42.
func (f *fixture) loseLock() {
	f.Helper()
	if !f.LoseLock(f, "account/42") {
		f.Error("the lock is not there")
	}
}

// lost is the answer to a client after its handler has lost its claim or its lock: the
// handler's effects are unknown, unless they were in its transaction.
func (f *fixture) lost() reply {
	if f.ledger == nil {
		return refused(reason.Lost)
	}
	return refused(reason.RolledBack)
}

// afterLoss is the client's next answer at once: answer if its transaction was rolled back,
// so that the handler runs again.
func (f *fixture) afterLoss(answer reply) reply {
	if f.ledger == nil {
		return refused(reason.InFlight)
	}
	return answer
}

// served is an endpoint that is served.
type served struct {
	f *fixture
	*adaptertest.Service
	client adaptertest.Client
}

// serve serves a handler under an engine and more layers.
func (f *fixture) serve(e *idempotency.Engine, h handler, behind ...adaptertest.Layer) *served {
	f.Helper()
	s := &adaptertest.Service{
		Route:  "/accounts/{id}/payments",
		Layers: append([]adaptertest.Layer{{Idempotent: e}}, behind...),
		Handler: func(ctx context.Context, call *adaptertest.Call) error {
			if _, err := call.Amount(); err != nil {
				f.Errorf("the handler does not read its request: %v", err)
			}
			number, err := f.ledger.enter(ctx)
			if err != nil {
				f.Errorf("the handler cannot have its effect: %v", err)
				return call.Answer(adaptertest.Failed, "no effect")
			}
			result, text := h(ctx)
			f.ledger.answer(number, kept(result, text))
			if result == adaptertest.None {
				return ctx.Err()
			}
			return call.Answer(result, text)
		},
	}
	return &served{f, s, f.Start(f, s)}
}

// send sends a request.
func (e *served) send(ctx context.Context, p payment) adaptertest.Outcome {
	r := adaptertest.Request{
		Values: map[string]string{"id": cmp.Or(p.account, "42")},
		Header: [][2]string{{"authorization", cmp.Or(p.principal, "alice")}},
		Body:   fmt.Sprintf(`{"amount":%d}%s`, p.amount, strings.Repeat(" ", p.padding)),
		Amount: p.amount, Padding: p.padding,
	}
	for _, key := range p.keys {
		r.Header = append(r.Header, [2]string{"idempotency-key", key})
	}
	return e.client.Call(ctx, r)
}

// call sends a request that is to be answered. It holds a refusal against the
// table of answers.
func (e *served) call(p payment) reply {
	e.f.Helper()
	patience := testkit.Patience
	if os.Getenv(childEnv) != "" {
		patience = 10 * time.Minute // the process may be stopped before its answer
	}
	ctx, cancel := context.WithTimeout(e.f.Context(), patience)
	defer cancel()
	o := e.send(ctx, p)
	for o.Reason == string(reason.Unavailable) && ctx.Err() == nil {
		o = e.send(ctx, p) // the server of the locks has not answered in time, on a busy machine
	}
	switch {
	case o.Code == "" || ctx.Err() != nil:
		e.f.Errorf("no answer: %+v", o)
	case o.Reason != "":
		o.Ran = false // others may have begun
		if e.f.ledger != nil && o.Reason == string(reason.OutcomeUnknown) && o.Pushback == "-1" {
			o.Pushback = "" // the table is about a duplicate, and this request has run
		}
		e.f.WantRefused(e.f, o, reason.Reason(o.Reason), false)
		return refused(reason.Reason(o.Reason))
	case o.Result() == adaptertest.None:
		e.f.Errorf("%+v", o)
	}
	if len(p.keys) == 1 {
		e.f.ledger.tell(p.keys[0], p.principal, kept(o.Result(), o.Text))
	}
	return reply{Result: o.Result(), Text: o.Text, Replayed: o.Replayed}
}

// waiter starts a duplicate of a request in flight, and returns once it waits: it
// has been told that the request is in flight, and has asked for its end.
func (e *served) waiter(key string) (answer func() reply) {
	e.f.Helper()
	before := e.f.Waiting(e.f)
	answer = e.start(key)
	e.f.eventually("the duplicate waits", func() bool { return e.f.Waiting(e.f) > before })
	return answer
}

// pay sends the payment with a key.
func (e *served) pay(key string) reply {
	e.f.Helper()
	return e.call(payment{keys: []string{key}})
}

// granted sends the payment with a key until the request has a claim: a claim that comes
// later than its lease ends is refused, and given up.
func (e *served) granted(key string) (a reply) {
	e.f.Helper()
	e.f.eventually("the claim is granted", func() bool {
		a = e.pay(key)
		return a != refused(reason.NoRecord) && a != refused(reason.InFlight)
	})
	return a
}

// start sends the payment with a key in the background, and returns a function that waits for
// its answer.
func (e *served) start(key string) (answer func() reply) {
	var a reply
	var wg sync.WaitGroup
	wg.Go(func() { a = e.pay(key) })
	return func() reply { wg.Wait(); return a }
}

func (f *fixture) want(what string, got, want reply) {
	f.Helper()
	if got != want {
		f.Errorf("%s: %+v; want %+v", what, shortened(got), shortened(want))
	}
}

func shortened(a reply) reply {
	if len(a.Text) > 100 {
		a.Text = fmt.Sprintf("%d bytes", len(a.Text))
	}
	return a
}

// eventually waits for a state that only the server knows.
func (f *fixture) eventually(what string, try func() bool) {
	f.Helper()
	testkit.Until(f, what, try)
}

// wait bounds the wait for an event. It fails the test and goes on, since handlers
// wait as well.
func (f *fixture) wait(what string, event <-chan struct{}) {
	f.Helper()
	if err := testkit.Meet(context.Background(), event); err != nil {
		f.Error("never: " + what)
	}
}
