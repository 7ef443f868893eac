package returnlock_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"testing"

	"go.uber.org/goleak"

	"github.com/interlock-go/interlock/core/adapter/adaptertest"
	"github.com/interlock-go/interlock/core/idempotency/endpoint/endpointtest"
	returnlock "github.com/interlock-go/interlock/examples/adapter"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const recovers = "the framework makes a response of a panic, inside all middleware"

// framework describes the framework to the tests.
var framework = adaptertest.Framework{
	Label: "returnlock", Start: start, Statuses: true, Idempotent: true,
	Cannot: map[string]string{
		"the failure of a service in between says that its caller holds the lock": "it has no client of this module, which would repeat a request",
		"free after a panic, which passes through":                                recovers,
		"free after http.ErrAbortHandler, which passes through":                   recovers,
	},
}

func TestTheAdapterKeepsTheRulesOfLocks(t *testing.T) { adaptertest.Run(t, framework) }

func TestTheAdapterKeepsTheRulesOfIdempotentEndpoints(t *testing.T) { endpointtest.Run(t, framework) }

// start serves a service with the framework and the adapter.
func start(tb testing.TB, s *adaptertest.Service) adaptertest.Client {
	chain := []returnlock.Middleware{func(next returnlock.Handler) returnlock.Handler {
		return func(ctx context.Context, r *returnlock.Request) (resp returnlock.Response) {
			s.Front(ctx, func(ctx context.Context) *http.Request {
				resp = next(ctx, r)
				return nil
			})
			return resp
		}
	}}
	for _, layer := range s.Layers {
		if layer.Idempotent != nil {
			chain = append(chain, returnlock.Idempotent(layer.Idempotent))
		} else {
			chain = append(chain, returnlock.Guard(layer.Lock))
		}
	}
	return s.ServeHTTP(tb, returnlock.Route(s.Pattern("{", "}"), func(ctx context.Context, r *returnlock.Request) (resp returnlock.Response) {
		err := s.Handle(ctx, &adaptertest.Call{
			Param: func(name string) string { return r.Params[name] },
			Amount: func() (int64, error) {
				var payment struct{ Amount int64 }
				err := json.Unmarshal(r.Payload, &payment)
				return payment.Amount, err
			},
			Send: func(text string) error {
				resp.Status, resp.Body = http.StatusOK, append(resp.Body, text...)
				return nil
			},
			Answer: func(result adaptertest.Result, text string) error {
				resp.Status, resp.Body = statuses[result], []byte(text)
				return nil
			},
		})
		switch {
		case errors.Is(err, adaptertest.ErrHandler):
			resp.Status = http.StatusConflict
		case err == nil && resp.Status == 0:
			resp.Status = http.StatusNoContent
		}
		return resp
	}, chain...))
}

var statuses = map[adaptertest.Result]int{
	adaptertest.OK: http.StatusCreated, adaptertest.Declined: http.StatusForbidden,
	adaptertest.Busy: http.StatusTooManyRequests, adaptertest.Failed: http.StatusInternalServerError,
}
