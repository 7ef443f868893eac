package echolock_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/labstack/echo/v4"
	"go.uber.org/goleak"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/core/reason"
	"github.com/interlock-go/interlock/echolock"
	"github.com/interlock-go/interlock/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newEcho is an application that does not print the deliberate errors of tests.
func newEcho() *echo.Echo {
	e := echo.New()
	e.Logger.SetOutput(io.Discard)
	return e
}

// keyOf answers with the key of its lease.
func keyOf(c echo.Context) error {
	return c.String(http.StatusOK, core.LeaseFromContext(c.Request().Context()).Key())
}

func never(t *testing.T) echo.HandlerFunc {
	return func(echo.Context) error { t.Error("the handler ran"); return nil }
}

func TestLeaseLostBeforeTheAnswerIs500AndJoinsTheHandlersError(t *testing.T) {
	store := memstore.New()
	locker := testkit.LockerOn(t, store)
	guard := core.Serialize(locker, "account/{id}")
	mine := errors.New("mine")
	e := newEcho()
	joined := make(chan bool, 10)
	e.HTTPErrorHandler = func(err error, c echo.Context) {
		joined <- errors.Is(err, mine) && errors.Is(err, core.ErrLost)
		e.DefaultHTTPErrorHandler(err, c)
	}
	lock := func(pattern string, h func(c echo.Context) error) {
		e.POST(pattern, h, echolock.Guard(guard))
	}
	lose := func(c echo.Context) { testkit.Lose(c.Request().Context(), t, store) }
	lock("/before/:id", func(c echo.Context) error {
		c.Response().Writer.WriteHeader(http.StatusEarlyHints) // not an answer
		lose(c)
		return nil
	})
	lock("/error/:id", func(c echo.Context) error { lose(c); return mine })
	lock("/inside/:id", func(c echo.Context) error { lose(c); c.Error(echo.NewHTTPError(409, "rolled back")); return nil })
	srv := testkit.Serve(t, e)
	post := func(path string) testkit.Answer { return testkit.Do(t, srv, "POST", path) }

	post("/before/1").WantProblem(t, 500, "lost", "")
	post("/error/1").WantProblem(t, 500, "lost", "")
	if first, second := <-joined, <-joined; first || !second {
		t.Errorf("the handler's error: joined %v, %v", first, second)
	}
	post("/inside/1").Want(t, 409, `{"message":"rolled back"}`+"\n")
}

const notFound = `{"message":"Not Found"}` + "\n"

func TestUseAndGroupsLockRoutesAndPassWhatMatchesNone(t *testing.T) {
	locker := testkit.Locker(t)
	guard := core.Serialize(locker, "account/{id}")
	for name, register := range map[string]func(e *echo.Echo) *echo.Group{
		"Use": func(e *echo.Echo) *echo.Group {
			e.Use(echolock.Guard(guard))
			return e.Group("/accounts")
		},
		"Group": func(e *echo.Echo) *echo.Group { return e.Group("/accounts", echolock.Guard(guard)) },
		"Host": func(e *echo.Echo) *echo.Group {
			return e.Host("example.org", echolock.Guard(guard)).Group("/accounts")
		},
		"parameter in the group": func(e *echo.Echo) *echo.Group {
			e.Group("/accounts/:id", echolock.Guard(guard)).GET("/deeper/x", keyOf)
			return e.Group("/accounts", echolock.Guard(guard))
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEcho()
			group := register(e)
			group.GET("/:id/x", keyOf)
			group.RouteNotFound("/:id/own", func(c echo.Context) error {
				return c.String(404, fmt.Sprint(core.LeaseFromContext(c.Request().Context())))
			})
			srv := testkit.Serve(t, e)
			do := func(method, path string) testkit.Answer {
				return testkit.Do(t, srv, method, path, func(r *http.Request) { r.Host = "example.org" })
			}
			logged := testkit.LogTo(t)
			for range 2 {
				do("GET", "/accounts/1/x").Want(t, 200, "account/1")
				do("GET", "/accounts/%41%2Fb/x").Want(t, 200, "account/A%2Fb")
				do("GET", "/accounts//x").WantProblem(t, 400, "bad-key", "") // echo matches it
				do("GET", "/nowhere").Want(t, 404, notFound)
				do("GET", "/accounts").Want(t, 404, notFound)
				do("GET", "/accounts/1/y/z").Want(t, 404, notFound)
				do("GET", "/accounts/1/own").Want(t, 404, "<nil>")
				if a := do("OPTIONS", "/accounts/1/x"); a.Status != 204 && a.Status != 404 {
					t.Errorf("OPTIONS: %d %s", a.Status, a.Body)
				}
				if a := do("POST", "/accounts/1/x"); a.Status != 405 && a.Status != 404 {
					t.Errorf("POST: %d %s", a.Status, a.Body)
				}
			}
			if logged.String() != "" {
				t.Errorf("logged:\n%s", logged)
			}
			group.GET("/:id/own", keyOf) // a route that came later is locked as well
			do("GET", "/accounts/1/own").Want(t, 200, "account/1")
		})
	}
}

func TestInPreRequestsAreRefusedNotLetThroughUnlocked(t *testing.T) {
	locker := testkit.Locker(t)
	e := newEcho()
	e.Pre(echolock.Guard(core.Serialize(locker, "account/{id}")))
	e.GET("/accounts/:id", never(t))
	logged := testkit.LogTo(t)
	srv := testkit.Serve(t, e)
	testkit.Do(t, srv, "GET", "/accounts/1").WantProblem(t, 500, "misconfigured", "")
	if !strings.Contains(logged.String(), "Use, not Pre") {
		t.Errorf("logged:\n%s", logged)
	}
	testkit.Do(t, srv, "GET", "/nowhere").Want(t, 404, notFound)
	if a := testkit.Do(t, srv, "POST", "/accounts/1"); a.Status != 405 {
		t.Errorf("%d %s", a.Status, a.Body)
	}
}

func TestErrorHandlerSeesTheRefusalAndHasTheLastWord(t *testing.T) {
	locker := testkit.Locker(t)
	e := newEcho()
	e.HTTPErrorHandler = func(err error, c echo.Context) {
		var refused *echolock.RefusalError
		switch {
		case !errors.As(err, &refused) || !errors.Is(err, core.ErrKey) || refused.Reason != reason.BadKey:
			t.Errorf("error %v", err)
		case c.QueryParam("as") == "page":
			_ = c.HTML(http.StatusForbidden, "<p>no</p>")
		case c.QueryParam("as") == "text":
			_ = c.String(http.StatusBadRequest, fmt.Sprint(err.(*echo.HTTPError).Message)) //nolint:errorlint // as applications do
		default:
			e.DefaultHTTPErrorHandler(err, c)
		}
	}
	e.Any("/", never(t), echolock.Guard(core.Serialize(locker, "t/{header.X}")))
	srv := testkit.Serve(t, e)
	page := testkit.Do(t, srv, "GET", "/?as=page")
	page.Want(t, 403, "<p>no</p>")
	if got := page.Header.Get("Content-Type"); got != echo.MIMETextHTMLCharsetUTF8 {
		t.Errorf("Content-Type %q", got)
	}
	testkit.Do(t, srv, "GET", "/?as=text").Want(t, 400, "The request does not name the resource to lock.")
	testkit.Do(t, srv, "GET", "/").WantProblem(t, 400, "bad-key", "")
	testkit.Do(t, srv, "GET", "/?pretty").WantProblem(t, 400, "bad-key", "") // echo indents then
	testkit.Do(t, srv, "HEAD", "/").Want(t, 400, "")
	e.Debug = true // here the error must not come out either
	testkit.Do(t, srv, "GET", "/").WantProblem(t, 400, "bad-key", "")
}

func TestConfigSkipsAndRendersAndMustHaveAGuard(t *testing.T) {
	locker := testkit.Locker(t)
	guard := core.Serialize(locker, "t/{header.X}")
	lock, err := echolock.Config{
		Guard:   guard,
		Skipper: func(c echo.Context) bool { return c.QueryParam("skip") != "" },
		Render: func(c echo.Context, refusal *core.Refusal) error {
			if c.QueryParam("fallback") != "" {
				return echolock.Problem(c, refusal)
			}
			return c.String(http.StatusForbidden, "say who you are")
		},
	}.ToMiddleware()
	if err != nil {
		t.Fatal(err)
	}
	e := newEcho()
	e.GET("/", func(c echo.Context) error {
		return c.String(http.StatusOK, fmt.Sprint(core.LeaseFromContext(c.Request().Context())))
	}, lock)
	e.GET("/short", never(t), echolock.Guard(guard, echolock.Render(nil)))
	srv := testkit.Serve(t, e)
	testkit.Do(t, srv, "GET", "/?skip=1").Want(t, 200, "<nil>")
	testkit.Do(t, srv, "GET", "/").Want(t, 403, "say who you are")
	testkit.Do(t, srv, "GET", "/?fallback=1").WantProblem(t, 400, "bad-key", "")
	testkit.Do(t, srv, "GET", "/short").WantProblem(t, 400, "bad-key", "")

	if _, err := (echolock.Config{}).ToMiddleware(); !errors.Is(err, core.ErrConfig) {
		t.Errorf("without a guard: %v", err)
	}
}

func TestMultipartFilesAreRemovedWhereTheRequestWasReplacedAgain(t *testing.T) {
	guard := core.Serialize(testkit.Locker(t), "upload")
	file := make(chan string, 1)
	upload := func(c echo.Context) error {
		name, err := testkit.OnDisk(c.Request())
		file <- name
		return err
	}
	e := newEcho()
	e.POST("/replaced", upload, echolock.Guard(guard), func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			type key struct{}
			c.SetRequest(c.Request().WithContext(context.WithValue(c.Request().Context(), key{}, 1)))
			return next(c)
		}
	})
	srv := testkit.Serve(t, e)
	testkit.Upload(t, srv, "/replaced")
	srv.Close() // waits until the server is done with the request
	name := <-file
	if _, err := os.Stat(name); name == "" || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the temporary file %q was left behind: %v", name, err)
	}
}
