//go:build long

package openapi

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/core/reason"
	_ "github.com/interlock-go/interlock/internal/bubble"
)

// site is a service in a bubble, with the route of a case.
type site struct {
	*testing.T
	c      refusal
	route  string
	store  *memstore.Store
	locker *core.Locker
	guard  *core.Guard
	engine *idempotency.Engine
	mux    http.Handler
	under  []func() // functions that end the requests that the case leaves under way
}

// refusal is a case. Its run returns the exchange that is judged. want is empty for an answer
// of the handler.
type refusal struct {
	want   reason.Reason
	replay bool // the answer is a stored answer
	idem   bool // the case is for idempotent endpoints
	serve  func(s *site, w http.ResponseWriter, r *http.Request)
	guard  []core.GuardOption
	atMost bool
	fenced error // of the fence; the rule takes no lock
	// template is the template of the rule; a case without a template has a form that fits any account.
	template string
	engine   []idempotency.Option
	tomb     bool // a profile forbids the option
	run      func(s *site) *exchange
}

func (c refusal) name() string {
	switch {
	case c.replay:
		return "a replay"
	case c.want == "":
		return "a first answer"
	}
	return string(c.want)
}

func (c refusal) routes() []string {
	switch {
	case c.tomb:
		return []string{draft, universal}
	case c.idem:
		return []string{draft, agentic, universal}
	}
	return []string{locks, draft, agentic, universal}
}

var user core.RequestFunc = func(_ context.Context, r core.Request) (string, error) {
	values := r.Header("X-User")
	return strings.Join(values, ","), nil
}

func newSite(t *testing.T, c refusal, route string) *site {
	t.Helper()
	s := &site{T: t, c: c, route: route, store: memstore.New()}
	var err error
	if s.locker, err = core.New(s.store); err != nil {
		t.Fatal(err)
	}
	template := c.template
	if template == "" {
		template = "account/{header.X-Account:int}"
	}
	options := append([]core.GuardOption{core.Wait(0)}, c.guard...)
	if s.guard = core.Serialize(s.locker, template, options...); c.atMost {
		s.guard = core.AtMost(s.locker, 1, template, options...)
	}
	if c.fenced != nil {
		s.guard = core.Fenced(template, func(context.Context, []core.Fence) error { return c.fenced })
	}
	all := append([]idempotency.Option{idempotency.Scope(user), idempotency.Under(s.guard), idempotency.Profile(profiles[route])}, c.engine...)
	if s.engine, err = idempotency.New(s.store, all...); err != nil {
		t.Fatal(err)
	}
	s.mux = s.handler()
	return s
}

func (s *site) run() *exchange {
	if s.c.run == nil {
		return s.send()
	}
	return s.c.run(s)
}

func (s *site) serve(w http.ResponseWriter, r *http.Request) {
	if s.c.serve != nil {
		s.c.serve(s, w, r)
		return
	}
	w.WriteHeader(http.StatusCreated)
	_, _ = w.Write([]byte("done"))
}

// close ends the rest, so that the bubble can end.
func (s *site) close() {
	for _, end := range s.under {
		end()
	}
	s.store.Intercept(nil)
	_ = s.engine.Close(context.Background())
	_ = s.locker.Close(context.Background())
	synctest.Wait()
}

// begin sends a request that is under way when begin returns; it ends with the case.
func (s *site) begin(change ...func(*http.Request)) {
	ctx, cancel := context.WithCancel(s.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.send(append(change, func(r *http.Request) { *r = *r.WithContext(ctx) })...)
	}()
	synctest.Wait()
	s.under = append(s.under, func() { cancel(); <-done })
}

func (s *site) hold(key string) {
	release := s.store.Take(key, time.Hour)
	s.under = append(s.under, release)
}

// fails has all requests of a kind fail.
func (s *site) fails(op memstore.Op, err error) {
	s.store.Intercept(func(r memstore.Request) memstore.Fault {
		if r.Op != op {
			return memstore.Fault{}
		}
		return memstore.Fault{Err: err}
	})
}

// waits is a handler that waits for the end of its request.
func waits(_ *site, _ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

// enlist gives the request of a handler a transaction, which commits with an error.
func enlist(w http.ResponseWriter, r *http.Request, answer string, commit error) {
	_, err := record.Enlist(r.Context(), func(_ context.Context, c record.Claim) (record.Unit, error) {
		return unit{c.Store, commit}, nil
	})
	if err != nil {
		http.Error(w, err.Error(), http.StatusTeapot)
		return
	}
	_, _ = w.Write([]byte(answer))
}

type unit struct {
	store  record.Store
	commit error
}

func (u unit) Commit(ctx context.Context, req record.CommitRequest) (record.CommitReply, error) {
	if u.commit != nil {
		return record.CommitReply{}, u.commit
	}
	return u.store.Commit(ctx, req)
}

func (unit) Rollback(context.Context) error { return nil }

func after(f func(s *site)) func(s *site) *exchange {
	return func(s *site) *exchange { f(s); return s.send() }
}

func with(change ...func(*http.Request)) func(s *site) *exchange {
	return func(s *site) *exchange { return s.send(change...) }
}

var cases = []refusal{
	// Of a guard.
	{want: reason.BadKey, run: with(header("X-Account", "one"))},
	{want: reason.BodyTooLarge, guard: []core.GuardOption{core.ReadBody(1)}},
	{want: reason.BodyIncomplete, guard: []core.GuardOption{core.ReadBody(9)}, run: with(body(broken{io.ErrUnexpectedEOF}))},
	{want: reason.BodyTimeout, guard: []core.GuardOption{core.ReadBody(9)}, run: with(body(broken{os.ErrDeadlineExceeded}))},
	{want: reason.Held, run: after(func(s *site) { s.hold("account/1") })},
	{want: reason.HeldByCaller, guard: []core.GuardOption{core.Wait(time.Hour)}, run: func(s *site) *exchange {
		lease, err := s.locker.Lock(s.Context(), "account/1")
		if err != nil {
			s.Fatal(err)
		}
		s.under = append(s.under, func() { _ = lease.Release(s.Context()) })
		return s.send(header(core.HeldHeader, core.HeldFor(lease.Context())))
	}},
	{want: reason.StaleToken, fenced: core.ErrLost, run: with(header(core.FencesHeader, "account/1=1"))},
	{want: reason.TokenMissing, fenced: core.ErrLost, run: with(header(core.FencesHeader, "account/2=1"))},
	{want: reason.TokenMalformed, fenced: core.ErrLost, run: with(header(core.FencesHeader, "account/1"))},
	{want: reason.QueueFull, guard: []core.GuardOption{core.Wait(time.Hour), core.MaxWaiters(1)}, run: func(s *site) *exchange {
		s.hold("account/1")
		s.begin()
		return s.send(header("Idempotency-Key", "second"))
	}},
	{want: reason.Superseded, guard: []core.GuardOption{core.Newest(), core.Wait(time.Hour)}, serve: func(s *site, w http.ResponseWriter, r *http.Request) {
		newer := make(chan struct{})
		go func() {
			defer close(newer)
			if lease, err := s.locker.Lock(s.Context(), "account/1", core.Newest()); err == nil {
				_ = lease.Release(s.Context())
			}
		}()
		s.under = append(s.under, func() { <-newer })
		waits(s, w, r)
	}},
	{want: reason.Full, atMost: true, run: after(func(s *site) {
		lease, err := s.locker.Permit(s.Context(), "account/1", 1)
		if err != nil {
			s.Fatal(err)
		}
		s.under = append(s.under, func() { _ = lease.Release(s.Context()) })
	})},
	{want: reason.PrincipalLimit, guard: []core.GuardOption{core.PerPrincipal(user, 1, 1)}, serve: waits, run: func(s *site) *exchange {
		s.begin()
		return s.send(header("Idempotency-Key", "second"), header("X-Account", "2"))
	}},
	{want: reason.Deadline, guard: []core.GuardOption{core.Wait(time.Hour)}, run: func(s *site) *exchange {
		s.hold("account/1")
		ctx, cancel := context.WithTimeout(s.Context(), time.Second)
		defer cancel()
		return s.send(func(r *http.Request) { *r = *r.WithContext(ctx) })
	}},
	{want: reason.Canceled, run: func(s *site) *exchange {
		ctx, cancel := context.WithCancel(s.Context())
		cancel()
		return s.send(func(r *http.Request) { *r = *r.WithContext(ctx) })
	}},
	{want: reason.Unavailable, run: after(func(s *site) { s.fails(memstore.Acquire, driver.ErrUnavailable) })},
	{want: reason.NotReplicated, run: after(func(s *site) { s.fails(memstore.Acquire, driver.ErrNotReplicated) })},
	{want: reason.KeyOccupied, run: after(func(s *site) { s.fails(memstore.Acquire, driver.ErrKeyOccupied) })},
	{want: reason.Closing, run: after(func(s *site) { _ = s.locker.Close(s.Context()) })},
	{want: reason.Lost, serve: func(s *site, w http.ResponseWriter, r *http.Request) {
		s.store.Expire("account/1")
		waits(s, w, r)
	}},
	{want: reason.MaxHold, guard: []core.GuardOption{core.MaxHold(time.Minute)}, serve: waits},
	{want: reason.Misconfigured, template: "account/{nope}"},
	{want: reason.Internal, template: "account/{ctx.account}", guard: []core.GuardOption{
		core.ContextFunc("account", func(context.Context, core.Request) (string, error) { return "", errors.New("broken") }),
	}},

	// Of an idempotent endpoint.
	{want: reason.KeyMissing, idem: true, run: with(func(r *http.Request) { r.Header.Del("Idempotency-Key") })},
	{want: reason.KeyMalformed, idem: true, run: with(header("Idempotency-Key", "two words"))},
	{want: reason.KeyMalformed, idem: true, run: with(header("Idempotency-Key", strings.Repeat("k", 256)))},
	{want: reason.NoPrincipal, idem: true, run: with(header("X-User", ""))},
	{want: reason.ContentType, idem: true, run: with(header("Content-Type", "application/grpc"))},
	{want: reason.KeyReused, idem: true, run: func(s *site) *exchange {
		s.send()
		return s.send(body(strings.NewReader("[]")))
	}},
	{want: reason.InFlight, idem: true, serve: waits, run: after(func(s *site) { s.begin() })},
	{want: reason.OutcomeUnknown, idem: true, serve: func(s *site, w http.ResponseWriter, r *http.Request) {
		if err := idempotency.MarkEffect(r.Context()); err != nil {
			s.Error(err)
		}
		waits(s, w, r)
	}, run: after(func(s *site) {
		s.begin()
		s.store.LapseClaims()
	})},
	{want: reason.ResponseUnavailable, idem: true, engine: []idempotency.Option{idempotency.MaxResponse(1)}, run: after(func(s *site) { s.send() })},
	{want: reason.ResponseTooLarge, idem: true, engine: []idempotency.Option{idempotency.MaxResponse(1)}, serve: func(_ *site, w http.ResponseWriter, r *http.Request) {
		enlist(w, r, "done", nil)
	}},
	{want: reason.RolledBack, idem: true, serve: func(_ *site, w http.ResponseWriter, r *http.Request) {
		enlist(w, r, "done", idempotency.ErrRolledBack)
	}},
	{want: reason.NotAcceptable, idem: true, serve: func(_ *site, w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		_, _ = w.Write([]byte("zipped"))
	}, run: after(func(s *site) { s.send(header("Accept-Encoding", "gzip")) })},
	{
		want: reason.KeyExpired, idem: true, tomb: true, engine: []idempotency.Option{idempotency.Tombstone(48 * time.Hour)},
		run: after(func(s *site) { s.send(); time.Sleep(25 * time.Hour) }),
	},
	{want: reason.NoRecord, idem: true, run: after(func(s *site) { s.fails(memstore.Claim, driver.ErrUnavailable) })},

	// Of the handler.
	{},
	{replay: true, idem: true, run: after(func(s *site) { s.send() })},
}
