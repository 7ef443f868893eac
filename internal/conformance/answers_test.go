package conformance_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/labstack/echo/v4"
	echov5 "github.com/labstack/echo/v5"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/adapter/adaptertest"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/core/reason"
	"github.com/interlock-go/interlock/echolock"
	echolockv5 "github.com/interlock-go/interlock/echolock/v5"
	"github.com/interlock-go/interlock/ginlock"
	"github.com/interlock-go/interlock/grpclock"
	"github.com/interlock-go/interlock/httplock"
	"github.com/interlock-go/interlock/internal/testkit"
)

func TestEveryReasonHasItsAnswer(t *testing.T) {
	ctx := t.Context()
	for _, reason := range reasons(t) {
		want, known := adaptertest.Answers[reason]
		if !known {
			t.Errorf("%s is not in the table", reason)
			continue
		}
		for _, ran := range []bool{false, true} {
			if ran {
				want.HTTPRetry, want.GRPCRetry = "", ""
			}
			refusal := &core.Refusal{Reason: reason, Ran: ran}
			for name, write := range map[string]func(w *httptest.ResponseRecorder){
				"net/http": func(w *httptest.ResponseRecorder) { httplock.Problem(w, nil, refusal) },
				"gin":      func(w *httptest.ResponseRecorder) { c, _ := gin.CreateTestContext(w); ginlock.Problem(c, refusal) },
				"echo": func(w *httptest.ResponseRecorder) {
					e := echo.New()
					c := e.NewContext(httptest.NewRequestWithContext(ctx, http.MethodPost, "/", http.NoBody), w)
					if err := echolock.Problem(c, refusal); err != nil {
						e.DefaultHTTPErrorHandler(err, c)
					}
				},
				"echo v5":                      func(w *httptest.ResponseRecorder) { echoV5(echov5.DefaultHTTPErrorHandler(true), w, refusal) },
				"echo v5, its problem details": func(w *httptest.ResponseRecorder) { echoV5(echov5.ProblemDetailsHTTPErrorHandler(true), w, refusal) },
			} {
				w := httptest.NewRecorder()
				write(w)
				code, retry := strconv.Itoa(w.Code), w.Header().Get("Retry-After")
				if w.Body.Len() == 0 {
					code = "" // the client has gone
				} else if !strings.Contains(w.Body.String(), `"urn:interlock:problem:`+string(reason)+`"`) {
					t.Errorf("%s, %s: %s", reason, name, w.Body)
				}
				if code != want.HTTP || retry != strings.TrimSuffix(want.HTTPRetry, "s") {
					t.Errorf("%s, %s, ran %v: %q, Retry-After %q; want %+v", reason, name, ran, code, retry, want)
				}
			}
			st := status.Convert(grpclock.Status(ctx, "/a/b", refusal))
			said, retry := "", ""
			for _, d := range st.Details() {
				switch d := d.(type) {
				case *errdetails.ErrorInfo:
					said = d.GetReason()
				case *errdetails.RetryInfo:
					retry = d.GetRetryDelay().AsDuration().String()
				}
			}
			if st.Code().String() != want.GRPC || retry != want.GRPCRetry || said != string(reason) {
				t.Errorf("%s, gRPC, ran %v: %v, retry %q; want %+v", reason, ran, st, retry, want)
			}
		}
	}
}

// echoV5 has an error handler of echo v5 answer with a refusal.
func echoV5(handler echov5.HTTPErrorHandler, w *httptest.ResponseRecorder, refusal *core.Refusal) {
	c := echov5.New().NewContext(httptest.NewRequest(http.MethodPost, "/", http.NoBody), w)
	if err := echolockv5.Problem(c, refusal); err != nil {
		handler(c, err)
	}
}

// reasons are all that package reason has.
func reasons(t *testing.T) (all []reason.Reason) {
	file, err := parser.ParseFile(token.NewFileSet(), "../../core/reason/reason.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		text, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, reason.Reason(text))
		return true
	})
	if len(all) != len(adaptertest.Answers) {
		t.Errorf("%d reasons found, and %d answers in the table", len(all), len(adaptertest.Answers))
	}
	return all
}

// A parameter is one segment of a path: the rest of one has several spellings.
func TestTheRestOfAPathIsNoParameter(t *testing.T) {
	logged := testkit.LogTo(t)
	guard := core.Serialize(testkit.Locker(t), "file/{path}")
	never := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the handler ran") })
	mux, g, e, e5 := http.NewServeMux(), gin.New(), echo.New(), echov5.New()
	mux.Handle("/rest/{path...}", httplock.Guard(guard)(never))
	g.POST("/rest/*path", ginlock.Guard(guard), gin.WrapH(never))
	e.POST("/rest/*", echo.WrapHandler(never), echolock.Guard(guard))
	e5.POST("/rest/*", echov5.WrapHandler(never), echolockv5.Guard(guard))
	for _, h := range []http.Handler{mux, g, e, e5} {
		testkit.Post(t, testkit.Serve(t, h), "/rest/a/b").WantProblem(t, 500, "misconfigured", "")
	}
	if !strings.Contains(logged.String(), "{path}") {
		t.Errorf("logged:\n%s", logged)
	}
}

// Frameworks log the errors of requests, and so the errors of this module.
func TestWhatFrameworksLogShowsNoKeyAndNoAddress(t *testing.T) {
	up := testkit.Locker(t)
	nowhere := memstore.New()
	nowhere.Intercept(func(memstore.Request) memstore.Fault {
		return memstore.Fault{Err: fmt.Errorf("%w: dial tcp 127.0.0.1:1: connection refused", driver.ErrUnavailable)}
	})
	down := testkit.LockerOn(t, nowhere)
	lease, err := up.Lock(t.Context(), "account/42")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lease.Release(t.Context()) }()
	never := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the handler ran") })

	for name, build := range map[string]func(logged io.Writer, held, down *core.Guard) http.Handler{
		"gin's logger": func(logged io.Writer, held, down *core.Guard) http.Handler {
			r := gin.New()
			r.Use(gin.LoggerWithWriter(logged))
			r.POST("/held/:id", ginlock.Guard(held), gin.WrapH(never))
			r.POST("/down/:id", ginlock.Guard(down), gin.WrapH(never))
			return r
		},
		"an error handler of echo's": func(logged io.Writer, held, down *core.Guard) http.Handler {
			e := echo.New()
			e.HTTPErrorHandler = func(err error, c echo.Context) {
				_, _ = fmt.Fprintf(logged, "%v %+v", err, err)
				e.DefaultHTTPErrorHandler(err, c)
			}
			e.POST("/held/:id", echo.WrapHandler(never), echolock.Guard(held))
			e.POST("/down/:id", echo.WrapHandler(never), echolock.Guard(down))
			return e
		},
		"an error handler of echo v5's": func(logged io.Writer, held, down *core.Guard) http.Handler {
			e := echov5.New()
			e.HTTPErrorHandler = func(c *echov5.Context, err error) {
				_, _ = fmt.Fprintf(logged, "%v %+v", err, err)
				echov5.DefaultHTTPErrorHandler(true)(c, err)
			}
			e.POST("/held/:id", echov5.WrapHandler(never), echolockv5.Guard(held))
			e.POST("/down/:id", echov5.WrapHandler(never), echolockv5.Guard(down))
			return e
		},
	} {
		for path, status := range map[string]int{"/held/42": 423, "/down/42": 503} {
			logged := new(testkit.Buffer)
			srv := testkit.Serve(t, build(logged, core.Serialize(up, "account/{id}", core.Wait(0)),
				core.Serialize(down, "account/{id}", core.Wait(100*time.Millisecond))))
			if a := testkit.Post(t, srv, path); a.Status != status {
				t.Errorf("%s, %s: %d", name, path, a.Status)
			}
			text := logged.String()
			if !strings.Contains(text, core.Hashed("account/42").Hash()) {
				t.Errorf("%s, %s: no hash is logged: %s", name, path, text)
			}
			if strings.Contains(text, "account/42") || strings.Contains(text, "127.0.0.1:1") {
				t.Errorf("%s, %s: a key or an address is logged: %s", name, path, text)
			}
		}
	}
}

// A mistake of the program's shows when it starts, not with the first request.
func TestRegistrationWithoutARuleOrAnEnginePanics(t *testing.T) {
	for name, register := range map[string]func(){
		"httplock.Guard":                  func() { httplock.Guard(nil) },
		"httplock.Idempotent":             func() { httplock.Idempotent(nil) },
		"ginlock.Guard":                   func() { ginlock.Guard(nil) },
		"ginlock.Idempotent":              func() { ginlock.Idempotent(nil) },
		"echolock.Guard":                  func() { echolock.Guard(nil) },
		"echolock.Idempotent":             func() { echolock.Idempotent(nil) },
		"echolock/v5.Guard":               func() { echolockv5.Guard(nil) },
		"echolock/v5.Idempotent":          func() { echolockv5.Idempotent(nil) },
		"grpclock.Protect with a rule":    func() { grpclock.Protect(grpclock.Rules{"/a/b": nil}, nil) },
		"grpclock.Protect with an engine": func() { grpclock.Protect(nil, grpclock.Methods{"/a/b": nil}) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			register()
		}()
	}
}
