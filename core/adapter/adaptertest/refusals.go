package adaptertest

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/core/reason"
	"github.com/interlock-go/interlock/internal/testkit"
)

// refusal is a behaviour: a call that is refused before its handler runs.
type refusal struct {
	want     reason.Reason
	template string // default account/{id}
	keyFunc  func(context.Context, core.Request) ([]string, error)
	opts     []core.GuardOption
	id       string   // default 1
	header   []string // X-Tenant
	query    string
	held     bool // by another caller
	closed   bool // the locker
	down     bool // the store
}

func (r refusal) holds(w *world) {
	locker := w.locker()
	template := r.template
	switch {
	case r.keyFunc != nil:
		r.opts = append(r.opts, core.KeyFunc(r.keyFunc))
	case template == "":
		template = "account/{id}"
	}
	s, client := w.serve(w.never, core.Serialize(locker, template, r.opts...))
	if r.held {
		w.hold(locker, "account/1")
	}
	if r.closed {
		if err := locker.Close(w.Context()); err != nil {
			w.Fatal(err)
		}
	}
	if r.down {
		w.store.Intercept(func(memstore.Request) memstore.Fault { return memstore.Unreachable })
	}
	id := r.id
	if id == "" {
		id = "1"
	}
	req := account(id)
	req.Body = id
	for _, v := range r.header {
		req.Header = append(req.Header, [2]string{"X-Tenant", v})
	}
	if r.query != "" {
		req.Path = id + "/call?" + r.query
	}
	if w.Untyped && r.want == reason.Misconfigured {
		r.want = reason.BadKey // as far as the adapter knows, the client has left the parameter out
	}
	logged := testkit.LogTo(w)
	w.wantRefused(client.Call(w.Context(), req), r.want, false)
	if v := s.Visit(w); v.Panic != nil || !v.Restored {
		w.Errorf("%+v", v)
	}
	testkit.Queued(w, locker, 0)
	switch text := logged.String(); r.want {
	case reason.Misconfigured:
		route := s.Pattern("{", "}")
		switch {
		case !w.HTTP && !w.Statuses:
			route = "id, from, to" // the message's fields
		case w.Colons:
			route = s.Pattern(":", "")
		}
		if !strings.Contains(text, template) && !strings.Contains(text, "{nope}") || !strings.Contains(text, route) {
			w.Errorf("logged:\n%s", text)
		}
	case reason.Held, reason.BadKey, reason.BodyTooLarge:
		if text != "" && r.opts == nil {
			w.Errorf("the client's mistake is logged:\n%s", text)
		}
	}
}

func (w *world) deadline() {
	locker := w.locker()
	w.hold(locker, "account/1")
	over := make(chan struct{})
	s := &Service{
		Layers:  locks(core.Serialize(locker, "account/{id}", core.Wait(time.Minute))),
		Handler: w.never,
		Derive: func(ctx context.Context) context.Context {
			return testkit.DeadlineContext{Context: ctx, Over: over}
		},
	}
	call := async(w.Context(), w.Start(w, s), account("1"))
	testkit.QueuedBefore(w, locker, 1, call)
	close(over)
	w.wantRefused(testkit.Receive(w, call, "the answer"), reason.Deadline, false)
	testkit.Queued(w, locker, 0)
}

func (w *world) failOpen() {
	locker := w.locker()
	s, client := w.serve(keysOf, core.Serialize(locker, "account/{id}", core.Wait(10*time.Millisecond), core.FailOpen()))
	w.store.Intercept(func(memstore.Request) memstore.Fault { return memstore.Unreachable })
	w.wantOK(client.Call(w.Context(), account("1")), "no lease")
	if v := s.Visit(w); !v.Restored {
		w.Errorf("%+v", v)
	}
}

// An empty segment of a path never reaches a handler. Some routers know no such
// route, which is as good; a message always has its fields.
func (w *world) emptyParam() {
	s, client := w.serve(w.never, core.Serialize(w.locker(), "account/{id}"))
	o := client.Call(w.Context(), account(""))
	if !w.HTTP || o.Reason != "" {
		w.wantRefused(o, reason.BadKey, false)
	} else if !slices.Contains([]string{"301", "307", "404"}, o.Code) {
		w.Errorf("%+v", o)
	}
	if s.Runs() != 0 {
		w.Error("the handler ran")
	}
}

// userKey is where authentication leaves the user that has no framework's own
// context to put it into.
type userKey struct{}

// user is one function for all frameworks.
func user(_ context.Context, req core.Request) (string, error) {
	if name, ok := req.Value("user").(string); ok {
		return name, nil
	}
	name, _ := req.Value(userKey{}).(string)
	return name, nil
}

func (w *world) principalSet() {
	s := &Service{Handler: keysOf}
	s.Layers = locks(core.Serialize(w.locker(), "user/{ctx.user}/{id}",
		core.ContextFunc("user", user), core.PerPrincipal(user, 1, 1)))
	if w.Sets {
		s.User = "alice"
	} else {
		s.Derive = func(ctx context.Context) context.Context { return context.WithValue(ctx, userKey{}, "alice") }
	}
	w.wantOK(w.Start(w, s).Call(w.Context(), account("1")), "user/alice/1")
}

func (w *world) principalNotFound() {
	for i, guard := range []*core.Guard{
		core.Serialize(w.locker(), "user/{ctx.user}", core.ContextFunc("user", core.FromContext(userKey{}))),
		core.Serialize(w.locker(), "account/{id}", core.PerPrincipal(core.FromContext("user"), 1, 1)),
	} {
		logged := testkit.LogTo(w)
		_, client := w.serve(keysOf, guard)
		w.wantRefused(client.Call(w.Context(), account("1")), reason.BadKey, false)
		if !strings.Contains(logged.String(), "finds nothing") {
			w.Errorf("rule %d: logged %q", i, logged)
		}
	}
}
