//go:build long

package frameworks

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"github.com/go-chi/chi/v5"
	"github.com/gofiber/fiber/v3"
	"github.com/gofiber/fiber/v3/middleware/adaptor"
	"github.com/labstack/echo/v4"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/echolock"
	"github.com/interlock-go/interlock/httplock"
	"github.com/interlock-go/interlock/internal/testkit"
)

var errDeclined = errors.New("the card was declined")

// answer is the answer to a client.
type answer struct {
	status   int
	body     string
	replayed bool
}

// post sends a request with an idempotency key to a handler without a connection.
func post(t *testing.T, h http.Handler, path string) answer {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, nil)
	r.Header.Set("Idempotency-Key", `"`+path+`"`)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return answer{w.Code, w.Body.String(), w.Header().Get(idempotency.ReplayedHeader) != ""}
}

// WrapMiddleware returns the error of the handler to echo when the middleware has stored
// the answer. The client's retry gets 200, as if the payment had been made.
func TestEchosBridgeStoresAnEmptySuccessForAHandlerThatFailed(t *testing.T) {
	failed := func(echo.Context) error { return echo.NewHTTPError(http.StatusForbidden, errDeclined.Error()) }
	logged := testkit.LogTo(t)
	e := echo.New()
	engine := testkit.Engine(t)
	e.POST("/payments", failed, echo.WrapMiddleware(httplock.Idempotent(engine)))
	for i := range 2 {
		if got, want := post(t, e, "/payments"), (answer{http.StatusOK, "", i > 0}); got != want {
			t.Errorf("request %d: %+v; want %+v, as the document says", i+1, got, want)
		}
	}
	if text := logged.String(); !strings.Contains(text, "wrote no answer") {
		t.Errorf("logged: %q", text)
	}
	// The adapter writes the answer to the error inside the middleware, which stores it.
	e, engine = echo.New(), testkit.Engine(t)
	e.POST("/payments", failed, echolock.Idempotent(engine))
	for i := range 2 {
		got := post(t, e, "/payments")
		if got.status != http.StatusForbidden || !strings.Contains(got.body, "declined") || got.replayed != (i > 0) {
			t.Errorf("request %d: %+v", i+1, got)
		}
	}
}

// HTTPMiddleware of fiber notes that the middleware has called its handler, and runs the
// next handler when the middleware has returned.
func TestFibersBridgeRunsTheHandlerWithoutItsLock(t *testing.T) {
	locker := testkit.Locker(t)
	debit := core.Serialize(locker, "account/{header.X-Account}")
	held := -1
	count := func(fiber.Ctx) error { held = len(locker.Held()); return nil }
	app := fiber.New()
	app.Post("/outside", adaptor.HTTPMiddleware(httplock.Guard(debit)), count)
	app.Post("/inside", adaptor.HTTPHandler(httplock.Guard(debit)(http.HandlerFunc(
		func(w http.ResponseWriter, _ *http.Request) {
			held = len(locker.Held())
			w.WriteHeader(http.StatusNoContent)
		}))))
	app.Post("/code", func(c fiber.Ctx) error {
		key, err := core.Key("account", c.Get("X-Account")) // a missing account is an error and no key
		if err != nil {
			return err
		}
		return locker.Do(c.Context(), key, func(context.Context) error { return count(c) })
	})
	for path, want := range map[string]int{"/outside": 0, "/inside": 1, "/code": 1} {
		held = -1
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, nil)
		r.Header.Set("X-Account", "42")
		res, err := app.Test(r, fiber.TestConfig{Timeout: 0})
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
		if held != want {
			t.Errorf("%s: %d locks were held while the handler ran, want %d; status %d", path, held, want, res.StatusCode)
		}
	}
}

// bridge makes a middleware of huma from a middleware of net/http. The handler, and huma's
// answer to its error, run inside.
func bridge(middleware func(http.Handler) http.Handler) func(huma.Context, func(huma.Context)) {
	return func(ctx huma.Context, next func(huma.Context)) {
		r, w := humago.Unwrap(ctx)
		r = r.WithContext(ctx.Context()) // with the values of huma.WithValue
		middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			next(humago.NewContext(ctx.Operation(), r, w))
		})).ServeHTTP(w, r)
	}
}

func TestHumaRunsItsHandlerUnderTheLockAndStoresItsErrors(t *testing.T) {
	type account struct {
		ID int `path:"id"`
	}
	locker, engine := testkit.Locker(t), testkit.Engine(t)
	debit := core.Serialize(locker, "account/{id:int}")
	mux := http.NewServeMux()
	api := humago.New(mux, huma.DefaultConfig("Bank", "1"))
	type user struct{}
	api.UseMiddleware(func(ctx huma.Context, next func(huma.Context)) { next(huma.WithValue(ctx, user{}, "alice")) })
	runs := 0
	huma.Register(api, huma.Operation{
		Method: http.MethodPost, Path: "/accounts/{id}/debit",
		Middlewares: huma.Middlewares{bridge(httplock.Idempotent(engine)), bridge(httplock.Guard(debit))},
	}, func(ctx context.Context, a *account) (*struct{}, error) {
		runs++
		if ctx.Value(user{}) != "alice" {
			t.Errorf("the handler's user is %v; want alice, by huma.WithValue", ctx.Value(user{}))
		}
		if lease := core.LeaseFromContext(ctx); lease == nil || lease.Key() != "account/42" {
			t.Errorf("the handler of %d runs under %v", a.ID, lease)
		}
		return nil, huma.Error422UnprocessableEntity(errDeclined.Error())
	})
	first := post(t, mux, "/accounts/42/debit")
	if first.status != http.StatusUnprocessableEntity || !strings.Contains(first.body, "declined") {
		t.Errorf("%+v", first)
	}
	if again := post(t, mux, "/accounts/42/debit"); again != (answer{first.status, first.body, true}) || runs != 1 {
		t.Errorf("%+v after %d runs", again, runs)
	}
}

func TestTheRulesOfAChiSubRouterTakeTheParametersInFrontOfIt(t *testing.T) {
	locker := testkit.Locker(t)
	tenant := httplock.Guard(core.Share(locker, "tenant/{tenant}"), httplock.RawParams())
	account := httplock.Guard(core.Serialize(locker, "tenant/{tenant}/account/{id:int}"), httplock.RawParams())
	keys := func(w http.ResponseWriter, _ *http.Request) {
		for _, held := range locker.Held() {
			_, _ = io.WriteString(w, held.Key+" ")
		}
	}
	r := chi.NewRouter()
	r.Route("/tenants/{tenant}", func(r chi.Router) {
		r.Use(tenant)
		r.With(account).Post("/accounts/{id}/debit", keys)
	})
	got := post(t, r, "/tenants/a/accounts/42/debit")
	if got.status != http.StatusOK || !strings.Contains(got.body, "tenant/a ") || !strings.Contains(got.body, "tenant/a/account/42 ") {
		t.Errorf("%+v", got)
	}
}
