package adaptertest

import (
	"context"
	"maps"
	"net/http"
	"slices"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/observe"
	"github.com/interlock-go/interlock/core/reason"
	"github.com/interlock-go/interlock/internal/testkit"
)

// wantLoss waits for the call of OnLost, and checks its report on the lock of account 1.
func (w *world) wantLoss(losses <-chan core.Loss, answered string) {
	w.Helper()
	l := testkit.Receive(w, losses, "OnLost")
	if l.Key != "account/1" || l.Rule != "account/{id}" || l.Reason != observe.LossDeleted || l.Answered != answered ||
		l.Route == "" || l.Owner == "" || l.Token == 0 || l.Held <= 0 {
		w.Errorf("%v", l)
	}
}

func (w *world) lostBefore() {
	losses := make(chan core.Loss, 10)
	s, client := w.serve(func(ctx context.Context, _ *Call) error {
		w.lose(ctx)
		return ctx.Err()
	}, core.Serialize(w.locker(), "account/{id}", core.OnLost(func(l core.Loss) { losses <- l })))
	w.wantRefused(client.Call(w.Context(), account("1")), reason.Lost, true)
	if v := s.Visit(w); v.Panic != nil || !v.Restored {
		w.Errorf("%+v", v)
	}
	w.wantLoss(losses, "no")
}

// The answer is the refusal, without header fields of the handler.
func (w *world) lostDescribed() {
	s := &Service{
		Layers: locks(core.Serialize(w.locker(), "account/{id}")),
		InFront: func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header().Set("Set-Cookie", "csrf=1")
			rw.Header().Set("Vary", "Origin")
			rw.Header().Set("X-Front", "1")
		},
		Handler: func(ctx context.Context, call *Call) error {
			h := call.W.Header()
			for name, value := range map[string]string{
				"ETag": `"1"`, "Content-Encoding": "br", "Location": "/payments/1", "Last-Modified": "Sun, 01 Nov 2026 00:00:00 GMT",
				"Cache-Control": "max-age=3600", "Content-Length": "1", "Content-Type": "text/csv", "X-Balance": "100",
			} {
				h.Set(name, value)
			}
			h.Add("Set-Cookie", "paid=1")
			h.Add("Vary", "Accept")
			h.Del("X-Front")
			w.lose(ctx)
			return nil
		},
	}
	a := testkit.Post(w, w.Start(w, s).(*HTTPClient).Server, "/1/call")
	a.WantProblem(w, 500, "lost", "")
	a.Header.Del("Date")
	a.Header.Del("Content-Length") // the problem's
	want := http.Header{
		"Set-Cookie": {"csrf=1"}, "Vary": {"Origin"}, "X-Front": {"1"}, "Interlock-Result": {"lost;ran"},
		"Cache-Control": {"no-store"}, "Content-Type": {"application/problem+json"},
	}
	if !maps.EqualFunc(a.Header, want, slices.Equal) {
		w.Errorf("header %v; want %v", a.Header, want)
	}
}

// A handler that has noticed the loss has the last word.
func (w *world) lostOwn() {
	s, client := w.serve(func(ctx context.Context, call *Call) error {
		w.lose(ctx)
		return call.Answer(Declined, "rolled back")
	}, core.Serialize(w.locker(), "account/{id}"))
	if o := client.Call(w.Context(), account("1")); o.Code != "403" || o.Text != "rolled back" {
		w.Errorf("%+v", o)
	}
	s.Visit(w)
}

// lostAfter makes the behaviour that an answer which has begun stays as it is,
// and the loss is for the operators.
func lostAfter(begin func(*Call) error, text string) func(w *world) {
	return func(w *world) {
		losses := make(chan core.Loss, 10)
		s, client := w.serve(func(ctx context.Context, call *Call) error {
			err := begin(call)
			w.lose(ctx)
			return err
		}, core.Serialize(w.locker(), "account/{id}", core.OnLost(func(l core.Loss) { losses <- l })))
		w.wantOK(client.Call(w.Context(), account("1")), text)
		s.Visit(w)
		if w.HTTP {
			w.wantLoss(losses, "yes")
		} else { // where the handler's return is the answer
			w.wantLoss(losses, "no")
		}
	}
}

// lostChecked makes the behaviour that a success is held back which a handler
// gives although its lock is lost, where the rule checks answers.
func lostChecked(begin func(*Call) error) func(w *world) {
	return func(w *world) {
		losses := make(chan core.Loss, 10)
		s, client := w.serve(func(_ context.Context, call *Call) error {
			w.loseUnnoticed("account/1")
			_ = begin(call)
			_ = begin(call)
			return nil
		}, core.Serialize(w.locker(), "account/{id}", core.CheckAnswer(), core.OnLost(func(l core.Loss) { losses <- l })))
		o := client.Call(w.Context(), account("1"))
		if w.Parts && !w.HTTP { // messages of a stream have left, its end is held back
			o.Text = ""
		}
		w.wantRefused(o, reason.Lost, true)
		if v := s.Visit(w); v.Panic != nil || !v.Restored {
			w.Errorf("%+v", v)
		}
		w.wantLoss(losses, "no")
	}
}

// A handler that panics after its answer was held back has answered nothing:
// the middleware that recovers can.
func (w *world) lostCheckedPanic() {
	s, client := w.serve(func(_ context.Context, call *Call) error {
		w.loseUnnoticed("account/1")
		_ = call.Send("done")
		panic("after all")
	}, core.Serialize(w.locker(), "account/{id}", core.CheckAnswer()))
	if o := client.Call(w.Context(), account("1")); o.Code != "500" || o.Text != "after all" { // the harness recovers
		w.Errorf("%+v", o)
	}
	if v := s.Visit(w); v.Panic != "after all" {
		w.Errorf("%+v", v)
	}
}

// An empty answer of net/http's is a success too, and checked.
func (w *world) lostSilent() {
	s, client := w.serve(func(_ context.Context, _ *Call) error {
		w.loseUnnoticed("account/1")
		return nil
	}, core.Serialize(w.locker(), "account/{id}", core.CheckAnswer()))
	w.wantRefused(client.Call(w.Context(), account("1")), reason.Lost, true)
	s.Visit(w)
}

func (w *world) checked() {
	guard := core.Serialize(w.locker(), "account/{id}", core.CheckAnswer())
	s, client := w.serve(func(ctx context.Context, call *Call) error {
		return core.Commit(ctx, func() error { return call.Send("done") })
	}, guard, guard)
	w.wantOK(client.Call(w.Context(), account("1")), "done")
	s.Visit(w)
	w.wantFree("account/1")
}
