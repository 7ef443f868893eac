package adaptertest

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/reason"
	"github.com/interlock-go/interlock/internal/testkit"
)

// inside is the inside of handlers that many calls can be in.
type inside struct {
	came, leave chan struct{}
	now         atomic.Int64
}

func newInside() *inside { return &inside{came: make(chan struct{}, 100), leave: make(chan struct{})} }

func (i *inside) handler(ctx context.Context, _ *Call) error {
	i.now.Add(1)
	defer i.now.Add(-1)
	i.came <- struct{}{}
	return testkit.Meet(ctx, i.leave)
}

func (w *world) shareReads() {
	in := newInside()
	locker := w.locker()
	_, client := w.serve(in.handler, core.Serialize(locker, "account/{id}", core.ShareReads(), core.Wait(time.Minute)))
	read, write := account("1"), account("1")
	read.Method, write.Method = http.MethodGet, http.MethodPut
	calls := []<-chan Outcome{async(w.Context(), client, read), async(w.Context(), client, read)}
	for _, c := range calls {
		testkit.ReceiveBefore(w, in.came, "the handler of a read ran", c)
	}
	_, other := w.serve(w.never, core.Serialize(locker, "account/{id}", core.ShareReads(), core.Wait(0)))
	w.wantRefused(other.Call(w.Context(), write), reason.Held, false)
	close(in.leave)
	for _, c := range calls {
		w.wantOK(testkit.Receive(w, c, "the end of a read"), "")
	}
	w.wantOK(client.Call(w.Context(), write), "")
}

// number is the number of permits that a request names.
func number(_ context.Context, req core.Request) (int, error) {
	text := strings.Join(req.Header("X-Tenant"), "")
	if text == "" {
		return 0, errors.New("no plan of alice")
	}
	return strconv.Atoi(text)
}

func numbered(n string) Request {
	req := account("1")
	if n != "" {
		req.Header = [][2]string{{"X-Tenant", n}}
	}
	return req
}

func (w *world) numbered() {
	in := newInside()
	_, client := w.serve(in.handler, core.AtMostFunc(w.locker(), number, "account/{id}", core.Wait(0)))
	var calls []<-chan Outcome
	for range 2 {
		c := async(w.Context(), client, numbered("2"))
		calls = append(calls, c)
		testkit.ReceiveBefore(w, in.came, "the handler ran", c)
	}
	for _, n := range []string{"2", "1", "0"} {
		w.wantRefused(client.Call(w.Context(), numbered(n)), reason.Full, false)
	}
	close(in.leave)
	for _, c := range calls {
		w.wantOK(testkit.Receive(w, c, "the end of a call"), "")
	}
}

func (w *world) notNumbered() {
	for _, c := range []struct {
		number string
		want   reason.Reason
		logged string
	}{
		{"-1", reason.Misconfigured, "returned -1"}, {"", reason.Internal, "no plan"}, {"many", reason.Internal, "invalid syntax"},
	} {
		_, client := w.serve(w.never, core.AtMostFunc(w.locker(), number, "account/{id}"))
		logged := testkit.LogTo(w)
		w.wantRefused(client.Call(w.Context(), numbered(c.number)), c.want, false)
		if !strings.Contains(logged.String(), c.logged) {
			w.Errorf("a number of %q: logged %q; want %q", c.number, logged, c.logged)
		}
	}
}
