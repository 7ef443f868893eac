package echolock_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/labstack/echo/v5"
	"go.uber.org/goleak"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/core/reason"
	"github.com/interlock-go/interlock/echolock/v5"
	"github.com/interlock-go/interlock/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// sayKey is a handler that answers with the key of its lease.
func sayKey(c *echo.Context) error {
	return c.String(http.StatusOK, core.LeaseFromContext(c.Request().Context()).Key())
}

// c.Param returns other text under each of these settings.
func TestOneResourceIsOneKeyUnderEachSettingOfTheRouter(t *testing.T) {
	for _, config := range []echo.RouterConfig{
		{},
		{UnescapePathParamValues: true},
		{UseEscapedPathForMatching: true},
		{UseEscapedPathForMatching: true, UnescapePathParamValues: true},
	} {
		e := echo.NewWithConfig(echo.Config{Router: echo.NewRouter(config)})
		account := core.Serialize(testkit.Locker(t), "account/{id}")
		e.POST("/items/A/static", func(c *echo.Context) error { return c.String(http.StatusOK, "static") })
		e.POST("/items/:id/debit", sayKey, echolock.Guard(account))
		g := e.Group("/of/:id", echolock.Guard(account))
		g.POST("/:other", sayKey)
		srv := testkit.Serve(t, e)
		for path, key := range map[string]string{
			"/items/A/debit":           "account/A",
			"/items/%41/debit":         "account/A",
			"/items/%2541/debit":       "account/%2541", // the value is %41
			"/items/%41%2541/debit":    "account/A%2541",
			"/items/%41%25/debit":      "account/A%25",
			"/items/a%20b/debit":       "account/a%20b",
			"/items/a+b/debit":         "account/a%2Bb",
			"/items/%C3%A4/debit":      "account/%C3%A4",
			"/of/%41/b":                "account/A",
			"/of/A/%62":                "account/A",
			"/items/caf%C3%A9/%64ebit": "account/caf%C3%A9",
		} {
			if path == "/items/caf%C3%A9/%64ebit" && !config.UseEscapedPathForMatching {
				continue // the default matches the path as it was sent
			}
			a := testkit.Do(t, srv, http.MethodPost, path)
			if a.Status != http.StatusOK || a.Body != key {
				t.Errorf("%+v, %s: %d %s; want %s", config, path, a.Status, a.Body, key)
			}
		}
		// An escaped slash is part of the value only where the router has not decoded it before.
		if !config.UseEscapedPathForMatching {
			testkit.Do(t, srv, http.MethodPost, "/items/a%2Fb/debit").Want(t, http.StatusOK, "account/a%2Fb")
		}
	}
}

func TestRequestsWithoutARoutePassWithoutALock(t *testing.T) {
	store := memstore.New()
	store.Take("account/7", time.Hour)
	account := core.Serialize(testkit.LockerOn(t, store), "account/{id}", core.Wait(0))
	for name, build := range map[string]func(e *echo.Echo){
		"Use":   func(e *echo.Echo) { e.Use(echolock.Guard(account)) },
		"group": func(e *echo.Echo) { e.Group("/accounts/:id", echolock.Guard(account)).POST("/close", sayKey) },
		"Pre":   func(e *echo.Echo) { e.Pre(echolock.Guard(account)) },
	} {
		e := echo.New()
		build(e)
		e.POST("/accounts/:id/debit", sayKey)
		srv := testkit.Serve(t, e)
		testkit.Do(t, srv, http.MethodPost, "/accounts/7/none").Want(t, http.StatusNotFound, "{\"message\":\"Not Found\"}\n")
		if name == "Pre" {
			testkit.Do(t, srv, http.MethodPost, "/accounts/7/debit").WantProblem(t, 500, "misconfigured", "")
			continue
		}
		if name == "Use" {
			testkit.Do(t, srv, http.MethodGet, "/accounts/7/debit").Want(t, http.StatusMethodNotAllowed, "{\"message\":\"Method Not Allowed\"}\n")
			testkit.Do(t, srv, http.MethodPost, "/accounts/7/debit").WantProblem(t, 423, "held", "1")
		} else {
			testkit.Do(t, srv, http.MethodPost, "/accounts/7/close").WantProblem(t, 423, "held", "1")
		}
	}
}

func TestRefusalsAreErrorsOfEcho(t *testing.T) {
	store := memstore.New()
	store.Take("account/7", time.Hour)
	account := core.Serialize(testkit.LockerOn(t, store), "account/{id}", core.Wait(0))
	e := echo.New()
	var got error
	e.HTTPErrorHandler = func(c *echo.Context, err error) {
		got = err
		_ = c.String(echo.StatusCode(err), "mine")
	}
	e.POST("/accounts/:id", sayKey, echolock.Guard(account))
	e.POST("/rendered/:id", sayKey, echolock.Guard(account, echolock.Render(func(c *echo.Context, refusal *core.Refusal) error {
		return c.String(http.StatusTeapot, string(refusal.Reason))
	})))
	srv := testkit.Serve(t, e)
	testkit.Do(t, srv, http.MethodPost, "/accounts/7").Want(t, 423, "mine")
	var refused *echolock.RefusalError
	if !errors.As(got, &refused) || refused.Reason != reason.Held || !errors.Is(got, core.ErrHeld) {
		t.Errorf("the error handler got %v", got)
	}
	testkit.Do(t, srv, http.MethodPost, "/rendered/7").Want(t, http.StatusTeapot, "held")
}

// Middleware in front may put a writer in place of echo's own that hides it.
func TestAWriterThatHidesEchosResponse(t *testing.T) {
	locker := testkit.Locker(t)
	e := echo.New()
	e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c *echo.Context) error {
			own := c.Response()
			c.SetResponse(struct{ http.ResponseWriter }{own})
			defer c.SetResponse(own)
			return next(c)
		}
	})
	runs := 0
	e.POST("/accounts/:id", sayKey, echolock.Guard(core.Serialize(locker, "account/{id}")))
	e.POST("/payments", func(c *echo.Context) error {
		runs++
		_, err := io.WriteString(c.Response(), fmt.Sprint("run ", runs))
		return err
	}, echolock.Idempotent(testkit.Engine(t)))
	srv := testkit.Serve(t, e)
	testkit.Do(t, srv, http.MethodPost, "/accounts/7").Want(t, 200, "account/7")
	testkit.Post(t, srv, "/payments").WantOwn(t, 200, "run 1")
	testkit.Post(t, srv, "/payments").WantReplay(t, 200, "run 1")
}

func TestMeasureBodyTellsABodyThatWasReadInPart(t *testing.T) {
	e := echo.New()
	e.Pre(echolock.MeasureBody)
	e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c *echo.Context) error { testkit.ReadIn(c.Request()); return next(c) }
	})
	e.POST("/", func(c *echo.Context) error { return c.Stream(http.StatusOK, "text/plain", c.Request().Body) },
		echolock.Idempotent(testkit.Engine(t)))
	testkit.WantMeasured(t, testkit.Serve(t, e))
}
