package adaptertest

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/core/reason"
	"github.com/interlock-go/interlock/internal/testkit"
)

func (w *world) exclusion() {
	locker := w.locker()
	var inside [2]atomic.Int64
	var plain [2]int // by the locks alone, as the race detector sees
	var came [2]sync.Once
	both := make(chan struct{})
	var first sync.WaitGroup
	first.Add(2)
	go func() { first.Wait(); close(both) }()
	_, client := w.serve(func(ctx context.Context, call *Call) error {
		i := strings.Index("ab", call.Param("id"))
		if n := inside[i].Add(1); n != 1 {
			w.Errorf("%d inside", n)
		}
		defer inside[i].Add(-1)
		plain[i]++
		came[i].Do(first.Done)
		return testkit.Meet(ctx, both) // inside both at the same time, or never
	}, core.Serialize(locker, "account/{id}", core.Wait(time.Minute)))
	const each = 6
	var calls []<-chan Outcome
	for i := range 2 * each {
		calls = append(calls, async(w.Context(), client, account("ab"[i%2:][:1])))
	}
	for _, c := range calls {
		w.wantOK(testkit.Receive(w, c, "the end of a call"), "")
	}
	if plain != [2]int{each, each} {
		w.Errorf("%v ran", plain)
	}
}

func (w *world) reentry() {
	locker := w.locker()
	guard := core.Serialize(locker, "account/{id}", core.Wait(testkit.Patience))
	s, client := w.serve(func(ctx context.Context, call *Call) error {
		// In code as well as by the same rule twice on one route.
		return locker.Do(ctx, "account/"+call.Param("id"), func(context.Context) error {
			if held := locker.Held(); len(held) != 1 || held[0].Holds != 3 {
				w.Errorf("held is %+v; want three holds of one lock", held)
			}
			return call.Send("inside")
		}, core.Wait(0))
	}, guard, guard)
	for range 2 {
		w.wantOK(client.Call(w.Context(), account("1")), "inside")
		s.Visit(w)
		w.wantFree("account/1")
	}
}

// ends makes the behaviour that the lock is free after a handler has ended.
func ends(ok bool, handler func(context.Context, *Call) error) func(w *world) {
	return func(w *world) {
		s, client := w.serve(handler, core.Serialize(w.locker(), "account/{id}", core.Wait(testkit.Patience)))
		for range 2 {
			o := client.Call(w.Context(), account("1"))
			if !ok && o.Code != "409" && o.Code != "FailedPrecondition" {
				w.Errorf("%+v; want the handler's own error", o)
			}
			if v := s.Visit(w); v.Panic != nil || !o.Ran || o.OK != ok || o.Reason != "" {
				w.Errorf("%+v, %+v", o, v)
			}
			w.wantFree("account/1")
		}
	}
}

func panics(value any) func(w *world) {
	return func(w *world) {
		s, client := w.serve(func(context.Context, *Call) error { panic(value) },
			core.Serialize(w.locker(), "account/{id}", core.Wait(testkit.Patience)))
		for range 2 {
			// The locks make no answer of it: the middleware that recovers does.
			if o := client.Call(w.Context(), account("1")); o.OK || o.Reason != "" || !o.Ran {
				w.Errorf("%+v", o)
			}
			if v := s.Visit(w); v.Panic != value {
				w.Errorf("%v came through; want %v", v.Panic, value)
			}
			w.wantFree("account/1")
		}
	}
}

// answerFirst has a store that does not answer a release until the client has its answer, and
// asks again.
func (w *world) answerFirst() {
	locker := w.locker()
	hold := make(chan struct{})
	letGo := sync.OnceFunc(func() { close(hold) })
	defer letGo()
	w.store.Intercept(func(r memstore.Request) memstore.Fault {
		if r.Op == memstore.Release {
			<-hold
		}
		return memstore.Fault{}
	})
	s, client := w.serve(say("done"), core.Serialize(locker, "account/{id}", core.Wait(time.Minute), core.AnswerFirst()))
	o := testkit.Receive(w, async(w.Context(), client, account("1")), "the answer")
	s.Visit(w)
	if w.wantOK(o, "done"); testkit.Free(w.store, "account/1") {
		w.Error("the lock is free before its release")
	}
	next := async(w.Context(), client, account("1"))
	testkit.QueuedBefore(w, locker, 1, next)
	letGo()
	w.wantOK(testkit.Receive(w, next, "the answer to the next call"), "done")
	s.Visit(w)
	testkit.Until(w, "the lock is free", func() bool { return testkit.Free(w.store, "account/1") })
}

func (w *world) disconnect() {
	inside := make(chan struct{}, 1)
	s, client := w.serve(func(ctx context.Context, _ *Call) error {
		if core.LeaseFromContext(ctx).Token() == 0 {
			w.Error("no token")
		}
		inside <- struct{}{}
		return testkit.Meet[struct{}](ctx, nil)
	}, core.Serialize(w.locker(), "account/{id}", core.Wait(testkit.Patience)))
	for range 2 {
		ctx, cancel := context.WithCancel(w.Context())
		call := async(ctx, client, account("1"))
		testkit.ReceiveBefore(w, inside, "its handler ran", call)
		cancel()
		s.Visit(w)
		w.wantFree("account/1")
		if o := testkit.Receive(w, call, "the call's end"); o.OK {
			w.Errorf("%+v", o)
		}
	}
}

// The shapes of an HTTP request from a client that may leave. Of one over HTTP/1 with a body
// that was not read, the server does not learn that.
type shape int

const (
	http1 shape = iota
	bodyRead
	http2
)

func leaves(how shape, body string) func(w *world) {
	return func(w *world) {
		locker := w.locker()
		w.hold(locker, "account/1")
		s := &Service{
			Layers:   locks(core.Serialize(locker, "account/{id}", core.Wait(time.Minute))),
			Handler:  w.never,
			HTTP2:    how == http2,
			ReadBody: how == bodyRead,
		}
		client := w.Start(w, s)
		ctx, cancel := context.WithCancel(w.Context())
		req := account("1")
		req.Body = body
		call := async(ctx, client, req)
		testkit.QueuedBefore(w, locker, 1, call)
		cancel()
		if v := s.Visit(w); v.Panic != nil { // long before the wait ends
			w.Errorf("%+v", v)
		}
		testkit.Queued(w, locker, 0)
		if o := testkit.Receive(w, call, "the call's end"); o.OK {
			w.Errorf("%+v", o)
		}
	}
}

func (w *world) leftBehind() {
	locker := w.locker()
	leave := w.hold(locker, "account/1")
	s, client := w.serve(keysOf, core.Serialize(locker, "account/{id}", core.Wait(time.Minute)))
	ctx, cancel := context.WithCancel(w.Context())
	gone := async(ctx, client, account("1"))
	testkit.QueuedBefore(w, locker, 1, gone)
	stays := async(w.Context(), client, account("1"))
	testkit.QueuedBefore(w, locker, 2, gone, stays)
	cancel()
	leave() // at about the same time
	w.wantOK(testkit.Receive(w, stays, "the turn of the client that stayed"), "account/1")
	testkit.Receive(w, gone, "the end of the client that left")
	s.Visit(w)
	s.Visit(w)
	testkit.Queued(w, locker, 0)
	w.wantFree("account/1")
}

// keys sends values that frameworks decode, normalize or split in their own
// ways. The lock's key is the same in all of them.
func (w *world) keys() {
	_, client := w.serve(keysOf, core.Serialize(w.locker(), "account/{id}"))
	for _, c := range []struct{ id, path, want string }{
		{id: "A", want: "A"},
		{id: "A", path: "%41", want: "A"}, // escaped without need
		{id: "%41", want: "%2541"},        // not decoded twice
		{id: "%2541", want: "%252541"},
		{id: "%", want: "%25"},
		{id: "a/b", want: "a%2Fb"},
		{id: "a/b", path: "a%2fb", want: "a%2Fb"},
		{id: "A/b", path: "%41%2Fb", want: "A%2Fb"},
		{id: "%41/b", want: "%2541%2Fb"},
		{id: "{}", want: "%7B%7D"},
		{id: "{id}", want: "%7Bid%7D"},
		{id: "}{", want: "%7D%7B"},
		{id: "\r\n", want: "%0D%0A"},
		{id: "1\r\nDEL x", want: "1%0D%0ADEL%20x"},
		{id: "\x00", want: "%00"},
		{id: "ö", want: "%C3%B6"},
		{id: "ö", path: "ö", want: "%C3%B6"}, // raw bytes in the path
		{id: "o\u0308", want: "o%CC%88"},     // not normalized
		{id: "日本/語", want: "%E6%97%A5%E6%9C%AC%2F%E8%AA%9E"},
		{id: "a b", want: "a%20b"},
		{id: "a+b", want: "a%2Bb"}, // no blank: this is no form
		{id: "a+b", path: "a+b", want: "a%2Bb"},
		{id: "a+b", path: "a%2Bb", want: "a%2Bb"},
		{id: "2f3a:1", want: "2f3a%3A1"},
		{id: "", path: "%FF", want: "%FF"}, // no UTF-8, which a message cannot have
		{id: "a;b=c", want: "a%3Bb%3Dc"},
		{id: "?x=y", want: "%3Fx%3Dy"},
		{id: "..", path: "%2e%2e", want: ".."},
		{id: "-._~", want: "-._~"},
		{id: ":id", want: "%3Aid"},
		{id: "*", want: "%2A"},
		{id: strings.Repeat("x", 504), want: strings.Repeat("x", 504)}, // and no byte more
	} {
		if c.id == "" && !w.HTTP {
			continue
		}
		req := account(c.id)
		if c.path != "" {
			req.Path = c.path + "/call"
		}
		if o := client.Call(w.Context(), req); !o.OK || o.Text != "account/"+c.want {
			w.Errorf("%q (%s): %+v; want account/%s", c.id, c.path, o, c.want)
		}
	}
}

func (w *world) headerKey() {
	_, client := w.serve(keysOf, core.Serialize(w.locker(), "tenant/{header.x-TENANT}/{id}"))
	req := account("1")
	req.Header = [][2]string{{"X-Tenant", "a/{b}"}}
	w.wantOK(client.Call(w.Context(), req), "tenant/a%2F%7Bb%7D/1")
}

// bodyKey has a KeyFunc read the body twice, to see that it is put back each time.
func (w *world) bodyKey() {
	keys := core.KeyFunc(func(_ context.Context, req core.Request) (keys []string, err error) {
		if got := fmt.Sprintf("%T", req.Native()); got != w.Native {
			w.Errorf("the native request is a %s; want a %s", got, w.Native)
		}
		var order struct{ Account string }
		for range 2 {
			body, failed := req.Body(1 << 20)
			if failed == nil {
				failed = json.Unmarshal(body, &order)
			}
			err = failed
		}
		if err != nil {
			return nil, fmt.Errorf("%w: %w", core.ErrKey, err)
		}
		key, err := core.Key("account", order.Account)
		return []string{key}, err
	})
	_, client := w.serve(func(ctx context.Context, call *Call) error {
		body, err := io.ReadAll(call.R.Body)
		if err != nil {
			w.Error(err)
		}
		return call.Send(fmt.Sprintf("%s %x", core.LeaseFromContext(ctx).Key(), sha256.Sum256(body)))
	}, core.Serialize(w.locker(), "", keys))
	post := func(body string) Outcome {
		req := account("1")
		req.Body = body
		return client.Call(w.Context(), req)
	}
	body := `{"account":"a/1","note":"` + strings.Repeat("x", 1<<16) + `"}`
	w.wantOK(post(body), fmt.Sprintf("account/a%%2F1 %x", sha256.Sum256([]byte(body))))
	for _, bad := range []string{`{"account":""}`, `{`, ``, `"` + strings.Repeat("x", 1<<20)} {
		w.wantRefused(post(bad), reason.BadKey, false) // the KeyFunc makes ErrKey of everything
	}
}

// restores makes the behaviour that middleware in front finds the request with
// its own context, which has not ended.
func restores(handler func(context.Context, *Call) error, ok bool) func(w *world) {
	return func(w *world) {
		guard := core.Serialize(w.locker(), "account/{id}")
		s, client := w.serve(handler, guard, guard)
		o := client.Call(w.Context(), account("1"))
		if v := s.Visit(w); !v.Restored || o.OK != ok {
			w.Errorf("%+v, %+v", o, v)
		}
	}
}
