package conformance

import (
	"context"
	"errors"
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

func (w *world) sharing() {
	in := newInside()
	locker, other := w.locker(), w.locker()
	_, client := w.serve(in.handler, core.Share(locker, "account/{id}", core.Wait(time.Minute)))
	_, elsewhere := w.serve(in.handler, core.Share(other, "account/{id}", core.Wait(time.Minute)))
	var calls []<-chan adaptertest.Outcome
	for range 3 {
		calls = append(calls, async(w.Context(), client, account("1")), async(w.Context(), elsewhere, account("1")))
	}
	for range calls {
		adaptertest.Receive(w, in.came, "a call that shares")
	}
	_, writer := w.serve(w.never, core.Serialize(other, "account/{id}", core.Wait(0)))
	w.wantRefused(w.asked(writer, account("1")), reason.Held, false)
	close(in.leave)
	for _, c := range calls {
		w.wantOK(adaptertest.Receive(w, c, "the end of a call"), "")
	}
	w.wantFree("account/1")
	w.hold(other, "account/1")
	_, reader := w.serve(w.never, core.Share(locker, "account/{id}", core.Wait(0)))
	w.wantRefused(w.asked(reader, account("1")), reason.Held, false)
}

func (w *world) writerFirst() {
	in := newInside()
	locker := w.locker()
	var order atomic.Value
	order.Store("")
	note := func(name string) func(context.Context, *adaptertest.Call) error {
		return func(context.Context, *adaptertest.Call) error {
			order.Store(order.Load().(string) + name) //nolint:forcetypeassert // a string
			return nil
		}
	}
	_, reader := w.serve(in.handler, core.Share(locker, "account/{id}", core.Wait(time.Minute)))
	_, writer := w.serve(note("writer "), core.Serialize(locker, "account/{id}", core.Wait(time.Minute)))
	_, late := w.serve(note("reader "), core.Share(locker, "account/{id}", core.Wait(time.Minute)))
	first := async(w.Context(), reader, account("1"))
	adaptertest.Receive(w, in.came, "the first reader")
	second := async(w.Context(), writer, account("1"))
	adaptertest.Queued(w, locker, 1)
	third := async(w.Context(), late, account("1"))
	adaptertest.Queued(w, locker, 2)
	close(in.leave)
	for _, c := range []<-chan adaptertest.Outcome{first, second, third} {
		w.wantOK(adaptertest.Receive(w, c, "the end of a call"), "")
	}
	if order.Load() != "writer reader " {
		w.Errorf("order: %v", order.Load())
	}
}

func (w *world) permits() {
	const n = 2
	in := newInside()
	var clients []adaptertest.Client
	for range 3 {
		_, client := w.serve(in.handler, core.AtMost(w.locker(), n, "account/{id}", core.Wait(time.Minute)))
		clients = append(clients, client)
	}
	var calls []<-chan adaptertest.Outcome
	for i := range 9 {
		calls = append(calls, async(w.Context(), clients[i%len(clients)], account("1")))
	}
	for range calls {
		adaptertest.Receive(w, in.came, "a call that has a permit")
		if now := in.now.Load(); now > n {
			w.Errorf("%d inside, of %d", now, n)
		}
		in.leave <- struct{}{}
	}
	for _, c := range calls {
		w.wantOK(adaptertest.Receive(w, c, "the end of a call"), "")
	}
	w.wantFree("account/1")
}

func (w *world) full() {
	in := newInside()
	locker := w.locker()
	_, client := w.serve(in.handler, core.AtMost(locker, 1, "account/{id}", core.Wait(time.Minute)))
	first := async(w.Context(), client, account("1"))
	adaptertest.Receive(w, in.came, "the holder")
	_, refused := w.serve(w.never, core.AtMost(locker, 1, "account/{id}", core.Wait(0)))
	w.wantRefused(w.asked(refused, account("1")), reason.Full, false)
	_, elsewhere := w.serve(w.never, core.AtMost(w.locker(), 1, "account/{id}", core.Wait(10*time.Millisecond)))
	w.wantRefused(w.asked(elsewhere, account("1")), reason.Full, false)
	close(in.leave)
	w.wantOK(adaptertest.Receive(w, first, "the holder's end"), "")
}

func (w *world) permitHeldOut() {
	locker := w.locker()
	w.hold(locker, "account/1")
	_, client := w.serve(w.never, core.AtMost(locker, 5, "account/{id}", core.Wait(0)))
	w.wantRefused(w.asked(client, account("1")), reason.Held, false)
}

func (w *world) reenterPlaces() {
	locker := w.locker()
	for _, rule := range []*core.Guard{
		core.Share(locker, "account/{id}", core.Wait(time.Minute)), core.AtMost(locker, 1, "account/{id}", core.Wait(time.Minute)),
	} {
		_, client := w.serve(func(ctx context.Context, call *adaptertest.Call) error {
			lease, err := locker.TryLockShared(ctx, "account/"+call.Param("id"))
			if errors.Is(err, core.ErrUpgrade) {
				lease, err = locker.TryPermit(ctx, "account/"+call.Param("id"), 1)
			}
			if err != nil {
				return err
			}
			return lease.Release(ctx)
		}, rule)
		w.wantOK(client.Call(w.Context(), account("1")), "")
		w.wantFree("account/1")
	}
}

func (w *world) upgrade() {
	locker := w.locker()
	_, client := w.serve(w.never, core.Share(locker, "account/{id}", core.Wait(time.Minute)), core.Serialize(locker, "account/{id}", core.Wait(0)))
	logged := adaptertest.LogTo(w)
	w.wantRefused(client.Call(w.Context(), account("1")), reason.Misconfigured, false)
	if logged.String() == "" {
		w.Error("a mistake of the server is not logged")
	}
	w.wantFree("account/1")
}

func (w *world) shareReads() {
	in := newInside()
	locker := w.locker()
	_, client := w.serve(in.handler, core.Serialize(locker, "account/{id}", core.ShareReads(), core.Wait(time.Minute)))
	read, write := account("1"), account("1")
	read.Method, write.Method = http.MethodGet, http.MethodPut
	calls := []<-chan adaptertest.Outcome{async(w.Context(), client, read), async(w.Context(), client, read)}
	for range calls {
		adaptertest.Receive(w, in.came, "a read")
	}
	_, other := w.serve(w.never, core.Serialize(locker, "account/{id}", core.ShareReads(), core.Wait(0)))
	w.wantRefused(w.asked(other, write), reason.Held, false)
	close(in.leave)
	for _, c := range calls {
		w.wantOK(adaptertest.Receive(w, c, "the end of a read"), "")
	}
	w.wantOK(client.Call(w.Context(), write), "")
}
