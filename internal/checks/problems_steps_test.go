package checks_test

import (
	"context"
	"net/http"
	"testing"

	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/explore"
	"github.com/interlock-go/interlock/httplock"
)

// Of docs/problems.md#a-handler-that-charges-books-and-mails.
func bookTrip(client *http.Client) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		for _, s := range []struct {
			name, url string
			opts      []idempotency.StepOption
		}{
			{"charge", "http://bank/charges", nil},                                       // the bank deduplicates
			{"book", "http://hotel/rooms", []idempotency.StepOption{idempotency.Once()}}, // the hotel does not
			{"mail", "http://mail/messages", nil},
		} {
			_, err := idempotency.Step(r.Context(), s.name, func(ctx context.Context) (string, error) {
				return postWithKey(ctx, client, s.url, idempotency.DownstreamKey(ctx))
			}, s.opts...)
			if err != nil {
				http.Error(w, "send it again", http.StatusServiceUnavailable)
				return
			}
		}
		w.WriteHeader(http.StatusCreated)
	}
}

// postWithKey is a call of another service.
func postWithKey(ctx context.Context, client *http.Client, url, key string) (string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, nil)
	if err != nil {
		return "", err
	}
	r.Header.Set(idempotency.KeyHeader, key)
	res, err := client.Do(r)
	if err != nil {
		return "", err
	}
	return res.Status, res.Body.Close()
}

func TestTheTripSurvivesCrashes(t *testing.T) {
	explore.Run(t, explore.Service{
		IgnoresKeys: []string{"hotel"},
		Handler: func(p *explore.Process) http.Handler {
			return httplock.Idempotent(p.Engine())(bookTrip(&http.Client{Transport: p}))
		},
	})
}
