package adaptertest

import (
	"context"
	"fmt"
	"sync"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/reason"
)

// fence is the fence of a resource, in memory.
type fence struct {
	mu     sync.Mutex
	latest map[string]int64
}

func (f *fence) claim(_ context.Context, fences []core.Fence) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, claimed := range fences {
		if claimed.Token < f.latest[claimed.Key] {
			return core.ErrLost
		}
		f.latest[claimed.Key] = claimed.Token
	}
	return nil
}

// tokensOf answers with the fences of its context.
func tokensOf(ctx context.Context, call *Call) error {
	return call.Send(fmt.Sprint(core.Fences(ctx)))
}

// under is a request that is sent with the tokens of a context.
func (w *world) under(ctx context.Context, id string) Request {
	w.Helper()
	field, err := core.FencesFor(ctx)
	if err != nil {
		w.Fatal(err)
	}
	return withTokens(id, field)
}

func withTokens(id, field string) Request {
	req := account(id)
	req.Header = append(req.Header, [2]string{core.FencesHeader, field})
	return req
}

// outdated has a caller that goes on after another one got its lock.
func (w *world) outdated() {
	locker := w.locker()
	rule := core.Fenced("account/{id}", (&fence{latest: map[string]int64{}}).claim)
	s, client := w.serve(tokensOf, rule)
	var leases [2]*core.Lease
	for i := range leases {
		lease, err := locker.Lock(w.Context(), "account/1")
		if err != nil {
			w.Fatal(err)
		}
		leases[i] = lease
		w.wantOK(client.Call(w.Context(), w.under(lease.Context(), "1")), fmt.Sprint([]core.Fence{{Key: "account/1", Token: lease.Token()}}))
		s.Visit(w)
		if err := lease.Release(w.Context()); err != nil {
			w.Fatal(err)
		}
	}
	w.wantRefused(client.Call(w.Context(), w.under(leases[0].Context(), "1")), reason.StaleToken, false)
	if v := s.Visit(w); v.Panic != nil || !v.Restored {
		w.Errorf("%+v; want the request as it was", v)
	}
}

// withoutToken makes the behaviour that a request with this field is refused. An empty field is
// not sent.
func withoutToken(field string, want reason.Reason) func(w *world) {
	return func(w *world) {
		_, client := w.serve(w.never, core.Fenced("account/{id}", (&fence{latest: map[string]int64{}}).claim))
		req := withTokens("1", field)
		if field == "" {
			req = account("1")
		}
		w.wantRefused(client.Call(w.Context(), req), want, false)
	}
}
