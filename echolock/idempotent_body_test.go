package echolock_test

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"testing"

	"github.com/labstack/echo/v4"

	"github.com/interlock-go/interlock/echolock"
	"github.com/interlock-go/interlock/internal/testkit"
)

func TestABodyThatMiddlewareInFrontHasReadIsInTheFingerprint(t *testing.T) {
	gzipped := func(to, amount string) func(*http.Request) {
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		if _, err := io.WriteString(w, "to="+to+"&amount="+amount); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		change := testkit.WithBody(echo.MIMEApplicationForm, b.String())
		return func(r *http.Request) {
			change(r)
			r.Header.Set(echo.HeaderContentEncoding, "gzip")
		}
	}
	front := func(read func(c echo.Context)) echo.MiddlewareFunc {
		return func(next echo.HandlerFunc) echo.HandlerFunc {
			return func(c echo.Context) error { read(c); return next(c) }
		}
	}
	for name, c := range map[string]struct {
		front echo.MiddlewareFunc // as package middleware of echo does it
		body  func(to, amount string) func(*http.Request)
	}{
		"CSRF by form":    {front(func(c echo.Context) { c.FormValue("csrf") }), testkit.Form},
		"KeyAuth by form": {front(func(c echo.Context) { _, _ = c.MultipartForm(); _, _ = c.FormParams() }), testkit.Form},
		"KeyAuth by multipart form": {
			front(func(c echo.Context) { _, _ = c.MultipartForm(); _, _ = c.FormParams() }),
			func(to, amount string) func(*http.Request) { return testkit.Multipart(t, to, amount) },
		},
		"BodyDump": {front(func(c echo.Context) {
			b, _ := io.ReadAll(c.Request().Body)
			c.Request().Body = io.NopCloser(bytes.NewBuffer(b))
		}), testkit.Form},
		"Decompress": {front(func(c echo.Context) {
			r, err := gzip.NewReader(c.Request().Body)
			if err != nil {
				t.Error(err)
				return
			}
			c.Request().Body = r
		}), gzipped},
	} {
		t.Run(name, func(t *testing.T) {
			e := echo.New()
			e.Use(c.front)
			e.POST("/", func(c echo.Context) error {
				amount := c.FormValue("amount")
				if file, err := c.FormFile("order"); err == nil {
					f, err := file.Open()
					if err != nil {
						return err
					}
					b, _ := io.ReadAll(f)
					amount = string(b)
				}
				return c.String(http.StatusOK, "paid "+amount+" to "+c.FormValue("to"))
			}, echolock.Idempotent(testkit.Engine(t)))
			srv := testkit.Serve(t, e)
			testkit.WantFingerprinted(t, srv, c.body)
		})
	}
}

func TestABodyThatMiddlewareInFrontHasBoundIsTheServersMistake(t *testing.T) {
	testkit.LogTo(t)
	e := echo.New()
	e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			var p struct{ To string }
			_ = c.Bind(&p)
			return next(c)
		}
	})
	e.POST("/", func(echo.Context) error { t.Error("the handler ran"); return nil }, echolock.Idempotent(testkit.Engine(t)))
	testkit.Post(t, testkit.Serve(t, e), "/", testkit.WithBody("application/json", `{"to":"alice"}`)).
		WantProblem(t, 500, "misconfigured", "")
}
