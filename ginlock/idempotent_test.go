package ginlock_test

import (
	"errors"
	"fmt"
	"html/template"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/gin-gonic/gin/render"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/ginlock"
	"github.com/interlock-go/interlock/internal/testkit"
)

// serveChain serves handlers under Idempotent, with middleware in front.
func serveChain(t *testing.T, front []gin.HandlerFunc, behind ...gin.HandlerFunc) *httptest.Server {
	t.Helper()
	r := gin.New()
	r.Use(front...)
	r.POST("/", append([]gin.HandlerFunc{ginlock.Idempotent(testkit.Engine(t))}, behind...)...)
	return testkit.Serve(t, r)
}

// Bare gin answers such a handler with an empty 200.
func TestAnErrorWithoutAnAnswerIsAFailure(t *testing.T) {
	for noted, status := range map[int]int{0: 500, 503: 503, 422: 500} {
		runs := 0
		srv := serveChain(t, nil, func(c *gin.Context) {
			if runs++; runs == 1 {
				if noted != 0 {
					c.Status(noted)
				}
				_ = c.Error(errors.New("disk"))
				return
			}
			c.String(http.StatusCreated, "done")
		})
		testkit.Post(t, srv, "/").WantOwn(t, status, "")
		testkit.Post(t, srv, "/").WantOwn(t, 201, "done")
		testkit.Post(t, srv, "/").WantReplay(t, 201, "done")
	}
}

func TestAMarkedErrorWithoutAnAnswerIsReplayedAsAFailure(t *testing.T) {
	srv := serveChain(t, nil, func(c *gin.Context) {
		if err := idempotency.MarkEffect(c.Request.Context()); err != nil {
			t.Error(err)
		}
		_ = c.Error(errors.New("disk"))
	})
	testkit.Post(t, srv, "/").WantOwn(t, 500, "")
	testkit.Post(t, srv, "/").WantReplay(t, 500, "")
}

func TestAMiddlewareInFrontMayAnswerErrors(t *testing.T) {
	runs := 0
	srv := serveChain(t, []gin.HandlerFunc{func(c *gin.Context) {
		if c.Next(); len(c.Errors) > 0 && !c.Writer.Written() {
			c.String(-1, "sorry: %v", c.Errors.Last())
		}
	}}, func(c *gin.Context) { runs++; _ = c.Error(errors.New("disk")) })
	testkit.Post(t, srv, "/").WantOwn(t, 500, "sorry: disk")
	testkit.Post(t, srv, "/").WantOwn(t, 500, "sorry: disk")
	if runs != 2 {
		t.Errorf("%d runs", runs)
	}
}

func TestAnAnswerWithAnErrorBesideItIsAnAnswer(t *testing.T) {
	srv := serveChain(t, nil, func(c *gin.Context) {
		_ = c.Error(errors.New("poor"))
		c.AbortWithStatusJSON(http.StatusForbidden, gin.H{"poor": true})
	})
	testkit.Post(t, srv, "/").WantOwn(t, 403, `{"poor":true}`)
	testkit.Post(t, srv, "/").WantReplay(t, 403, `{"poor":true}`)
}

func TestAPanicIsRecoveredAsWithoutTheMiddleware(t *testing.T) {
	runs := 0
	srv := serveChain(t, []gin.HandlerFunc{gin.RecoveryWithWriter(io.Discard)}, func(c *gin.Context) {
		if runs++; runs == 1 {
			c.String(http.StatusCreated, "half")
			panic("at the disco")
		}
		c.String(http.StatusCreated, "done")
	})
	testkit.Post(t, srv, "/").WantOwn(t, 500, "")
	testkit.Post(t, srv, "/").WantProblem(t, 409, "idempotency-response-unavailable", "") // it had begun to say 201
	if runs != 1 {
		t.Errorf("%d runs; want 1", runs)
	}
}

func TestAResponseThatBreaksOffIsNotReplayedAsIfItWereWhole(t *testing.T) {
	for name, chain := range map[string][]gin.HandlerFunc{
		"an error behind the half": {func(c *gin.Context) {
			c.String(http.StatusCreated, "half")
			_ = c.Error(errors.New("disk full"))
		}},
		"a template that fails in the middle": {func(c *gin.Context) {
			c.Render(http.StatusCreated, render.HTML{
				Template: template.Must(template.New("").Parse("half {{.Missing}}")), Data: struct{}{},
			})
		}},
		"panic, recovered behind": {gin.RecoveryWithWriter(io.Discard), func(c *gin.Context) {
			c.String(http.StatusCreated, "half")
			panic("disk full")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			logged, runs := testkit.LogTo(t), 0
			srv := serveChain(t, nil, append([]gin.HandlerFunc{func(*gin.Context) { runs++ }}, chain...)...)
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

// An error that was reported before the answer, or together with an answer that is a refusal,
// does not break it off.
func TestAnErrorBesideAWholeAnswerBreaksNothingOff(t *testing.T) {
	for name, c := range map[string]struct {
		handler gin.HandlerFunc
		status  int
		body    string
	}{
		"before": {func(c *gin.Context) { _ = c.Error(errors.New("late")); c.String(http.StatusCreated, "done") }, 201, "done"},
		"beside": {func(c *gin.Context) { _ = c.AbortWithError(http.StatusNotFound, errors.New("none")) }, 404, ""},
	} {
		t.Run(name, func(t *testing.T) {
			srv := serveChain(t, nil, c.handler)
			testkit.Post(t, srv, "/").WantOwn(t, c.status, c.body)
			testkit.Post(t, srv, "/").WantReplay(t, c.status, c.body)
		})
	}
}

func TestAnAnswerThatTheHandlerDidNotWriteIsLogged(t *testing.T) {
	for name, c := range map[string]struct {
		handler gin.HandlerFunc
		logged  bool
	}{
		"nothing":  {func(*gin.Context) {}, true},
		"a status": {func(c *gin.Context) { c.Status(http.StatusOK) }, false},
		"an error": {func(c *gin.Context) { _ = c.Error(errors.New("disk")) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			logged := testkit.LogTo(t)
			testkit.Post(t, serveChain(t, nil, c.handler), "/")
			if text := logged.String(); strings.Contains(text, "wrote no answer") != c.logged {
				t.Errorf("logged: %q; want the line: %t", text, c.logged)
			}
		})
	}
}

// gin's writer reports the same values in a handler with and without the capture.
func TestTheWriterIsLikeGins(t *testing.T) {
	look := func(c *gin.Context) string { return fmt.Sprint(c.Writer.Status(), c.Writer.Size(), c.Writer.Written()) }
	handler := func(says *[]string) gin.HandlerFunc {
		return func(c *gin.Context) {
			*says = append(*says, look(c))
			c.Status(http.StatusCreated)
			*says = append(*says, look(c))
			c.Writer.WriteHeader(-1)
			_, _ = c.Writer.WriteString("ab")
			*says = append(*says, look(c))
			c.Status(http.StatusAccepted)
			c.Writer.Flush()
			n := 0
			left := c.Stream(func(w io.Writer) bool { n++; _, _ = w.Write([]byte("c")); return n < 2 })
			*says = append(*says, look(c), fmt.Sprint(left))
		}
	}
	var bare, idempotent []string
	r := gin.New()
	r.POST("/bare", handler(&bare))
	r.POST("/idempotent", ginlock.Idempotent(testkit.Engine(t)), handler(&idempotent))
	srv := testkit.Serve(t, r)
	testkit.Post(t, srv, "/bare").WantOwn(t, 201, "abcc")
	testkit.Post(t, srv, "/idempotent").WantOwn(t, 201, "abcc")
	if !slices.Equal(bare, idempotent) {
		t.Errorf("%q; want %q", idempotent, bare)
	}
}

func TestAFlushWritesTheStatusThatWasNoted(t *testing.T) {
	for _, flush := range []func(w gin.ResponseWriter) error{
		func(w gin.ResponseWriter) error { w.Flush(); return nil },
		func(w gin.ResponseWriter) error { return http.NewResponseController(w).Flush() },
	} {
		srv := serveChain(t, nil, func(c *gin.Context) {
			c.Status(http.StatusCreated)
			if err := flush(c.Writer); err != nil {
				t.Error(err)
			}
		})
		testkit.Post(t, srv, "/").WantOwn(t, 201, "")
		testkit.Post(t, srv, "/").WantReplay(t, 201, "")
	}
}

func TestIdempotentRefusalsCanBeRendered(t *testing.T) {
	r := gin.New()
	r.POST("/", ginlock.Idempotent(testkit.Engine(t), ginlock.Render(func(c *gin.Context, refusal *core.Refusal) {
		c.String(http.StatusTeapot, "%s", refusal.Reason)
	})), func(*gin.Context) { t.Error("the handler ran") })
	testkit.Do(t, testkit.Serve(t, r), http.MethodPost, "/").Want(t, http.StatusTeapot, "idempotency-key-missing")
}
