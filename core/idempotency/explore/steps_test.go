package explore_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/explore"
	"github.com/interlock-go/interlock/httplock"
)

// send is a call to the outside, with the key of its step.
func send(ctx context.Context, p *explore.Process, url string) (string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, nil)
	if err != nil {
		return "", err
	}
	r.Header.Set("Idempotency-Key", idempotency.DownstreamKey(ctx))
	res, err := p.RoundTrip(r)
	if err != nil {
		return "", err
	}
	return res.Status, res.Body.Close()
}

// order charges, books and mails: the hotel does not deduplicate. step carries out each of the three.
func order(step func(ctx context.Context, name string, f func(context.Context) (string, error), opts ...idempotency.StepOption) (string, error)) explore.Service {
	return explore.Service{
		IgnoresKeys: []string{"hotel"},
		Handler: func(p *explore.Process) http.Handler {
			call := func(url string) func(context.Context) (string, error) {
				return func(ctx context.Context) (string, error) { return send(ctx, p, url) }
			}
			return httplock.Idempotent(p.Engine())(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, err := step(r.Context(), "charge", call("http://bank/charge"))
				if err == nil {
					_, err = step(r.Context(), "book", call("http://hotel/book"), idempotency.Once())
				}
				if err == nil {
					_, err = step(r.Context(), "mail", call("http://mail/send"))
				}
				if err != nil {
					http.Error(w, "not now", http.StatusServiceUnavailable)
					return
				}
				w.WriteHeader(http.StatusCreated)
			}))
		},
	}
}

func TestAnOrderOfStepsSurvivesCrashes(t *testing.T) {
	explore.Run(t, order(idempotency.Step[string]))
}

// The control: without steps the hotel books twice.
func TestAnOrderWithoutStepsBooksTwice(t *testing.T) {
	r := explore.Find(t, order(func(ctx context.Context, _ string, f func(context.Context) (string, error), _ ...idempotency.StepOption) (string, error) {
		return f(ctx)
	}))
	if r.Failure == nil || !strings.Contains(fmt.Sprint(r.Failure.Faults, r.Failure.Broken), "POST /book of hotel") {
		t.Errorf("found %+v; want two bookings", r.Failure)
	}
}
