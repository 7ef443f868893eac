package echolock_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"

	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/echolock"
	"github.com/interlock-go/interlock/internal/testkit"
)

// serveRoute serves a handler under Idempotent, with middleware in front.
func serveRoute(t *testing.T, handler echo.HandlerFunc, front ...echo.MiddlewareFunc) (*echo.Echo, *httptest.Server) {
	t.Helper()
	e := echo.New()
	e.Logger.SetOutput(io.Discard)
	e.Use(front...)
	e.POST("/", handler, echolock.Idempotent(testkit.Engine(t)))
	return e, testkit.Serve(t, e)
}

// Rendered after the capture, the stored answer would be an empty 200.
func TestErrorsAreStoredAsTheyAreRendered(t *testing.T) {
	var seen []string
	_, srv := serveRoute(t, func(echo.Context) error {
		return echo.NewHTTPError(http.StatusForbidden, "poor")
	}, func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			err := next(c)
			seen = append(seen, fmt.Sprint(err, c.Response().Status, c.Response().Size, c.Response().Committed))
			return err
		}
	})
	const body = `{"message":"poor"}` + "\n"
	testkit.Post(t, srv, "/").WantOwn(t, 403, body)
	testkit.Post(t, srv, "/").WantReplay(t, 403, body)
	if fmt.Sprint(seen) != "[code=403, message=poor 403 19 true <nil> 403 19 true]" {
		t.Errorf("seen in front: %v", seen)
	}
}

func TestAnErrorThatIsNotRenderedIsAFailure(t *testing.T) {
	runs := 0
	e, srv := serveRoute(t, func(c echo.Context) error {
		if runs++; runs == 1 {
			return errors.New("disk")
		}
		return c.String(http.StatusCreated, "done")
	})
	e.HTTPErrorHandler = func(error, echo.Context) {}
	testkit.Post(t, srv, "/")
	testkit.Post(t, srv, "/").WantOwn(t, 201, "done")
}

// A response that counted as committed would keep Recover from answering.
func TestAPanicIsRecoveredAsWithoutTheMiddleware(t *testing.T) {
	runs := 0
	_, srv := serveRoute(t, func(c echo.Context) error {
		runs++
		err := c.String(http.StatusCreated, "done")
		if runs == 1 {
			panic("at the disco")
		}
		return err
	}, func(next echo.HandlerFunc) echo.HandlerFunc { // as echo's own Recover
		return func(c echo.Context) (err error) {
			defer func() {
				if thrown := recover(); thrown != nil {
					c.Error(fmt.Errorf("%v", thrown))
				}
			}()
			return next(c)
		}
	})
	if a := testkit.Post(t, srv, "/"); a.Status != 500 || a.Body != `{"message":"Internal Server Error"}`+"\n" {
		t.Errorf("%d %q", a.Status, a.Body)
	}
	testkit.Post(t, srv, "/").WantProblem(t, 409, "idempotency-response-unavailable", "") // it had begun to say 201
	if runs != 1 {
		t.Errorf("%d runs; want 1", runs)
	}
}

func TestAResponseThatBreaksOffIsNotReplayedAsIfItWereWhole(t *testing.T) {
	for name, half := range map[string]echo.HandlerFunc{
		"an error behind the half": func(c echo.Context) error {
			_ = c.String(http.StatusCreated, "half")
			return errors.New("disk full")
		},
		"panic, recovered behind": middleware.RecoverWithConfig(middleware.RecoverConfig{DisableErrorHandler: true})(func(c echo.Context) error {
			_ = c.String(http.StatusCreated, "half")
			panic("disk full")
		}),
	} {
		t.Run(name, func(t *testing.T) {
			logged, runs := testkit.LogTo(t), 0
			_, srv := serveRoute(t, func(c echo.Context) error { runs++; return half(c) })
			for range 2 {
				testkit.Post(t, srv, "/").WantProblem(t, 409, "idempotency-response-unavailable", "")
			}
			if runs != 1 {
				t.Errorf("the handler ran %d times; want 1", runs)
			}
			if n := strings.Count(logged.String(), "retries are told that it is not available"); n != 1 {
				t.Errorf("logged %d times; want once: %s", n, logged)
			}
		})
	}
}

func TestAnAnswerThatTheHandlerDidNotWriteIsLogged(t *testing.T) {
	for name, c := range map[string]struct {
		handler echo.HandlerFunc
		logged  bool
	}{
		"nothing":  {func(echo.Context) error { return nil }, true},
		"a status": {func(c echo.Context) error { return c.NoContent(http.StatusOK) }, false},
		"an error": {func(echo.Context) error { return errors.New("disk") }, false},
	} {
		t.Run(name, func(t *testing.T) {
			logged := testkit.LogTo(t)
			_, srv := serveRoute(t, c.handler)
			testkit.Post(t, srv, "/")
			if text := logged.String(); strings.Contains(text, "wrote no answer") != c.logged {
				t.Errorf("logged: %q; want the line: %t", text, c.logged)
			}
		})
	}
}

// A hook from in front changes the header again for a replay.
func TestHooksFromInFrontRunForEachResponse(t *testing.T) {
	n := 0
	_, srv := serveRoute(t, func(c echo.Context) error {
		c.Response().Before(func() { c.Response().Header().Set("X-Inside", "1") })
		return c.String(http.StatusCreated, "done")
	}, func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			c.Response().Before(func() { n++; c.Response().Header().Set("X-Outside", fmt.Sprint(n)) })
			return next(c)
		}
	})
	for i, want := range []func(testkit.Answer, testing.TB, int, string){testkit.Answer.WantOwn, testkit.Answer.WantReplay} {
		a := testkit.Post(t, srv, "/")
		want(a, t, 201, "done")
		if a.Header.Get("X-Inside") != "1" || a.Header.Get("X-Outside") != fmt.Sprint(i+1) {
			t.Errorf("%v", a.Header)
		}
	}
}

func TestAnErrorAfterALossIsTheLoss(t *testing.T) {
	store := memstore.New()
	e := echo.New()
	e.POST("/", func(c echo.Context) error {
		ctx := c.Request().Context()
		store.Empty()
		<-ctx.Done()
		return context.Cause(ctx)
	}, echolock.Idempotent(testkit.EngineOn(t, store, idempotency.Global(), idempotency.Lease(150*time.Millisecond))))
	testkit.Post(t, testkit.Serve(t, e), "/").WantProblem(t, 500, "lost", "")
}

func TestIdempotentHasASkipper(t *testing.T) {
	e := echo.New()
	e.POST("/", func(c echo.Context) error { return c.String(200, "done") }, echolock.Idempotent(testkit.Engine(t),
		func(c *echolock.Config) {
			c.Skipper = func(c echo.Context) bool { return c.QueryParam("stream") != "" }
		}))
	srv := testkit.Serve(t, e)
	testkit.Do(t, srv, http.MethodPost, "/").WantProblem(t, 400, "idempotency-key-missing", "")
	testkit.Do(t, srv, http.MethodPost, "/?stream=1").Want(t, 200, "done")
}
