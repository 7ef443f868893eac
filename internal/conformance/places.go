package conformance

import (
	"context"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/reason"
	"github.com/interlock-go/interlock/internal/adaptertest"
)

// inside is the inside of handlers that many calls can be in.
type inside struct {
	came, leave chan struct{}
	now         atomic.Int64
}

func newInside() *inside { return &inside{came: make(chan struct{}, 100), leave: make(chan struct{})} }

func (i *inside) handler(ctx context.Context, _ *adaptertest.Call) error {
	i.now.Add(1)
	defer i.now.Add(-1)
	i.came <- struct{}{}
	return adaptertest.Meet(ctx, i.leave)
}

func (w *world) shareReads() {
	in := newInside()
	locker := w.locker()
	_, client := w.serve(in.handler, core.Serialize(locker, "account/{id}", core.ShareReads(), core.Wait(time.Minute)))
	read, write := account("1"), account("1")
	read.Method, write.Method = http.MethodGet, http.MethodPut
	calls := []<-chan adaptertest.Outcome{async(w.Context(), client, read), async(w.Context(), client, read)}
	for _, c := range calls {
		adaptertest.Receive(w, in.came, "the handler of a read ran", c)
	}
	_, other := w.serve(w.never, core.Serialize(locker, "account/{id}", core.ShareReads(), core.Wait(0)))
	w.wantRefused(other.Call(w.Context(), write), reason.Held, false)
	close(in.leave)
	for _, c := range calls {
		w.wantOK(adaptertest.Receive(w, c, "the end of a read"), "")
	}
	w.wantOK(client.Call(w.Context(), write), "")
}
