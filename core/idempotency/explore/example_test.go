package explore_test

import (
	"errors"
	"fmt"
	"net/http"
	"testing"

	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/explore"
	"github.com/interlock-go/interlock/httplock"
)

// payments is the handler of the comment of the package.
func payments(bank *http.Client) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		charge, _ := http.NewRequestWithContext(r.Context(), "POST", "http://bank/charge", nil)
		res, err := bank.Do(charge)
		if err == nil {
			err = errors.Join(res.Body.Close(), idempotency.MarkEffect(r.Context()))
		}
		if err != nil {
			http.Error(w, "not now", http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusCreated)
	}
}

// marked is payments with its mark in front.
func marked(bank *http.Client) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if err := idempotency.MarkEffect(r.Context()); err != nil {
			http.Error(w, "not now", http.StatusServiceUnavailable)
			return
		}
		payments(bank)(w, r)
	}
}

func TestThePaymentSurvivesCrashes(t *testing.T) {
	payments := marked
	explore.Run(t, explore.Service{
		Handler: func(p *explore.Process) http.Handler {
			return httplock.Idempotent(p.Engine())(payments(&http.Client{Transport: p}))
		},
		Invariant: func(w *explore.World) error {
			if n := w.Count("POST /charge of bank"); n > 1 {
				return fmt.Errorf("charged %d times", n)
			}
			return nil
		},
	})
}

func TestTheCommentOfThePackage(t *testing.T) {
	r := explore.Find(t, explore.Service{
		Handler: func(p *explore.Process) http.Handler {
			return httplock.Idempotent(p.Engine())(payments(&http.Client{Transport: p}))
		},
	})
	const want = "process A died after POST /charge of bank and before MarkEffect: POST /charge of bank: twice for request 1; without faults once"
	if got := r.Failure.Faults + ": " + r.Failure.Broken; got != want {
		t.Errorf("found %q, want %q", got, want)
	}
	if want := "alone: A dies after POST /charge of bank"; r.Failure.Path != want {
		t.Errorf("the path is %q, want %q", r.Failure.Path, want)
	}
}
