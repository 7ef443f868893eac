package ginlock_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/ginlock"
	"github.com/interlock-go/interlock/internal/adaptertest"
	"github.com/interlock-go/interlock/internal/idemtest"
)

func serveIdempotent(_ testing.TB, e *idemtest.Endpoint) http.Handler {
	chain := []gin.HandlerFunc{ginlock.Idempotent(e.Engine)}
	if e.Again != nil {
		chain = append(chain, ginlock.Idempotent(e.Again))
	}
	if e.Lock != nil {
		chain = append(chain, ginlock.Serialize(e.Lock))
	}
	r := gin.New()
	r.UseRawPath = true
	r.Any("/accounts/:id/payments", append(chain, func(c *gin.Context) {
		e.ServeHTTP(c.Writer, c.Request, c.Param("id"))
	})...)
	return r
}

func TestIdempotent(t *testing.T) { idemtest.RunHTTP(t, serveIdempotent) }

// serveChain serves handlers behind Idempotent, with middleware in front.
func serveChain(t *testing.T, front []gin.HandlerFunc, behind ...gin.HandlerFunc) *httptest.Server {
	t.Helper()
	r := gin.New()
	r.Use(front...)
	r.POST("/", append([]gin.HandlerFunc{ginlock.Idempotent(idemtest.Engine(t))}, behind...)...)
	return adaptertest.Serve(t, r)
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
		idemtest.WantOwn(t, idemtest.Post(t, srv, "/"), status, "")
		idemtest.WantOwn(t, idemtest.Post(t, srv, "/"), 201, "done")
		idemtest.WantReplay(t, idemtest.Post(t, srv, "/"), 201, "done")
	}
}

func TestAMarkedErrorWithoutAnAnswerIsReplayedAsAFailure(t *testing.T) {
	srv := serveChain(t, nil, func(c *gin.Context) {
		if err := idempotency.MarkEffect(c.Request.Context()); err != nil {
			t.Error(err)
		}
		_ = c.Error(errors.New("disk"))
	})
	idemtest.WantOwn(t, idemtest.Post(t, srv, "/"), 500, "")
	idemtest.WantReplay(t, idemtest.Post(t, srv, "/"), 500, "")
}

func TestAMiddlewareInFrontMayAnswerErrors(t *testing.T) {
	runs := 0
	srv := serveChain(t, []gin.HandlerFunc{func(c *gin.Context) {
		if c.Next(); len(c.Errors) > 0 && !c.Writer.Written() {
			c.String(-1, "sorry: %v", c.Errors.Last())
		}
	}}, func(c *gin.Context) { runs++; _ = c.Error(errors.New("disk")) })
	idemtest.WantOwn(t, idemtest.Post(t, srv, "/"), 500, "sorry: disk")
	idemtest.WantOwn(t, idemtest.Post(t, srv, "/"), 500, "sorry: disk")
	if runs != 2 {
		t.Errorf("%d runs", runs)
	}
}

func TestAnAnswerWithAnErrorBesideItIsAnAnswer(t *testing.T) {
	srv := serveChain(t, nil, func(c *gin.Context) {
		_ = c.Error(errors.New("poor"))
		c.AbortWithStatusJSON(http.StatusPaymentRequired, gin.H{"poor": true})
	})
	idemtest.WantOwn(t, idemtest.Post(t, srv, "/"), 402, `{"poor":true}`)
	idemtest.WantReplay(t, idemtest.Post(t, srv, "/"), 402, `{"poor":true}`)
}

func TestAReplayEndsTheChain(t *testing.T) {
	var runs [2]int
	var seen []string
	srv := serveChain(t, []gin.HandlerFunc{func(c *gin.Context) {
		c.Next()
		seen = append(seen, fmt.Sprint(c.Writer.Status(), c.Writer.Size(), c.Writer.Written(), c.IsAborted()))
	}}, func(*gin.Context) { runs[0]++ }, func(c *gin.Context) { runs[1]++; c.String(http.StatusCreated, "done") })
	idemtest.WantOwn(t, idemtest.Post(t, srv, "/"), 201, "done")
	idemtest.WantReplay(t, idemtest.Post(t, srv, "/"), 201, "done")
	if runs != [2]int{1, 1} || fmt.Sprint(seen) != "[201 4 true false 201 4 true true]" {
		t.Errorf("%v runs; seen in front: %v", runs, seen)
	}
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
	idemtest.WantOwn(t, idemtest.Post(t, srv, "/"), 500, "")
	idemtest.WantOwn(t, idemtest.Post(t, srv, "/"), 201, "done")
}

// What gin's writer says in a handler is what it says without the capture.
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
	r.POST("/idempotent", ginlock.Idempotent(idemtest.Engine(t)), handler(&idempotent))
	srv := adaptertest.Serve(t, r)
	idemtest.WantOwn(t, idemtest.Post(t, srv, "/bare"), 201, "abcc")
	idemtest.WantOwn(t, idemtest.Post(t, srv, "/idempotent"), 201, "abcc")
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
		idemtest.WantOwn(t, idemtest.Post(t, srv, "/"), 201, "")
		idemtest.WantReplay(t, idemtest.Post(t, srv, "/"), 201, "")
	}
}

func TestIdempotentRefusalsCanBeRendered(t *testing.T) {
	r := gin.New()
	r.POST("/", ginlock.Idempotent(idemtest.Engine(t), ginlock.Render(func(c *gin.Context, refusal *core.Refusal) {
		c.String(http.StatusTeapot, "%s", refusal.Reason)
	})), func(*gin.Context) { t.Error("the handler ran") })
	adaptertest.Do(t, adaptertest.Serve(t, r), http.MethodPost, "/").Want(t, http.StatusTeapot, "idempotency-key-missing")
}

func TestIdempotentWithoutAnEnginePanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("it did not")
		}
	}()
	ginlock.Idempotent(nil)
}
