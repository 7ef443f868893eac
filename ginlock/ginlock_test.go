package ginlock_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/ginlock"
	"github.com/interlock-go/interlock/httplock"
	"github.com/interlock-go/interlock/internal/adaptertest"
	"github.com/interlock-go/interlock/internal/redistest"
)

func TestMain(m *testing.M) {
	gin.SetMode(gin.TestMode)
	redistest.Main(m)
}

// keyOf answers with the key of its lease.
func keyOf(c *gin.Context) {
	c.String(http.StatusOK, "%s", core.LeaseFromContext(c.Request.Context()).Key())
}

func at(g adaptertest.Gate) gin.HandlerFunc { return func(*gin.Context) { g.Pass() } }

func TestRequestsForOneResourceRunOneAfterTheOtherAndOthersBeside(t *testing.T) {
	locker := adaptertest.Locker(t)
	guard := core.Serialize(locker, "account/{id}", core.Wait(time.Minute))
	exclusion := adaptertest.NewExclusion()
	r := gin.New()
	r.POST("/accounts/:id/debit", ginlock.Serialize(guard), func(c *gin.Context) {
		exclusion.Enter(t, int(c.Param("id")[0]-'0'))
	})
	exclusion.Run(t, adaptertest.Serve(t, r), [2]string{"/accounts/0/debit", "/accounts/1/debit"})
}

func TestRefusalsFollowTheTableAndTheHandlerDoesNotRun(t *testing.T) {
	locker := adaptertest.Locker(t)
	hold := adaptertest.NewGate()
	r := gin.New()
	never := func(*gin.Context) { t.Error("the handler ran") }
	lock := func(pattern, template string, h gin.HandlerFunc, opts ...core.Option) {
		r.POST(pattern, ginlock.Serialize(core.Serialize(locker, template, opts...)), h)
	}
	lock("/hold/:id", "account/{id}", at(hold))
	lock("/nowait/:id", "account/{id}", never, core.Wait(0))
	lock("/short/:id", "account/{id}", never, core.Wait(20*time.Millisecond))
	lock("/full/:id", "account/{id}", never, core.MaxWaiters(1), core.Wait(time.Minute))
	lock("/header", "tenant/{header.X-Tenant}", never)
	lock("/query", "query/{query.q}", never)
	lock("/accounts/:id/x", "account/{id}", never)
	lock("/typo/:id", "account/{idd}", never)
	lock("/rest/*path", "file/{path}", never)
	lock("/body", "", never, core.KeyFunc(func(_ context.Context, req core.Request) ([]string, error) {
		_, err := req.Body(4)
		return []string{"k"}, err
	}))
	r.GET("/full/:id", ginlock.Serialize(core.Serialize(locker, "account/{id}", core.Wait(time.Minute))), never)
	r.POST("/deadline/:id", func(c *gin.Context) {
		ctx, cancel := context.WithTimeout(c.Request.Context(), 20*time.Millisecond)
		defer cancel()
		c.Request = c.Request.WithContext(ctx)
		c.Next()
	}, ginlock.Serialize(core.Serialize(locker, "account/{id}")), never)
	srv := adaptertest.Serve(t, r)
	post := func(path string, change ...func(*http.Request)) adaptertest.Answer {
		return adaptertest.Do(t, srv, "POST", path, change...)
	}
	tenant := func(v string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Add("X-Tenant", v) }
	}

	var wg sync.WaitGroup
	wg.Go(func() { post("/hold/1") })
	<-hold.Inside
	post("/nowait/1").WantProblem(t, 423, "held", "1")
	post("/short/1").WantProblem(t, 423, "held", "1")
	post("/deadline/1").WantProblem(t, 423, "deadline", "")
	leave := adaptertest.Leave(t, srv, "/full/1")
	adaptertest.Queued(t, locker, 1)
	post("/full/1").WantProblem(t, 423, "queue-full", "1")
	leave()
	adaptertest.Queued(t, locker, 0)
	close(hold.Leave)
	wg.Wait()

	logged := adaptertest.LogTo(t)
	post("/header").WantProblem(t, 400, "bad-key", "")
	post("/header", tenant("")).WantProblem(t, 400, "bad-key", "")
	post("/header", tenant("a"), tenant("b")).WantProblem(t, 400, "bad-key", "")
	post("/query").WantProblem(t, 400, "bad-key", "")
	post("/accounts//x").WantProblem(t, 400, "bad-key", "") // gin matches it
	post("/accounts/"+strings.Repeat("x", 505)+"/x").WantProblem(t, 400, "bad-key", "")
	post("/body", func(r *http.Request) {
		r.Body, r.ContentLength = io.NopCloser(strings.NewReader("12345")), 5
	}).WantProblem(t, 413, "body-too-large", "")
	if logged.String() != "" {
		t.Errorf("the clients' mistakes were logged:\n%s", logged)
	}
	post("/typo/1").WantProblem(t, 500, "misconfigured", "")
	post("/rest/a/b").WantProblem(t, 500, "misconfigured", "")
	if !strings.Contains(logged.String(), "{idd}") || !strings.Contains(logged.String(), "/typo/:id") {
		t.Errorf("logged:\n%s", logged)
	}

	if err := locker.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	post("/nowait/1").WantProblem(t, 503, "closing", "1")
}

func TestUnreachableStoreIs503AndTheHandlerDoesNotRun(t *testing.T) {
	server := redistest.Start(t)
	locker := adaptertest.LockerOn(t, server.Client(t))
	guard := core.Serialize(locker, "account/{id}", core.Wait(50*time.Millisecond))
	r := gin.New()
	r.POST("/:id", ginlock.Serialize(guard), func(*gin.Context) { t.Error("the handler ran") })
	server.Kill()
	adaptertest.Do(t, adaptertest.Serve(t, r), "POST", "/1").WantProblem(t, 503, "unavailable", "1")
}

// However a handler ends, what runs in front of the middleware after it finds
// the lock released, the original request and the handler's answer.
func TestLockIsReleasedAndRequestRestoredHoweverTheHandlerEnds(t *testing.T) {
	rdb := redistest.Shared(t).Client(t)
	locker := adaptertest.LockerOn(t, rdb)
	guard := core.Serialize(locker, "account/{id}")
	after := make(chan string, 1)
	r := gin.New()
	r.Use(func(c *gin.Context) {
		original := c.Request
		defer func() {
			v := recover()
			if c.Request != original || c.Request.Context().Err() != nil {
				t.Error("the original request was not restored")
			}
			if !adaptertest.Free(t, rdb, "account/1") {
				t.Error("the lock is still held")
			}
			after <- fmt.Sprintf("%v %v", v, c.Errors.Errors())
			if v != nil {
				panic(v)
			}
		}()
		c.Next()
	}, func(c *gin.Context) { // a link in between, to see that the chain is one
		c.Next()
	})
	for path, h := range map[string]gin.HandlerFunc{
		"/nothing/:id":  func(*gin.Context) {},
		"/return/:id":   keyOf,
		"/status/:id":   func(c *gin.Context) { c.Status(http.StatusAccepted) },
		"/abort/:id":    func(c *gin.Context) { c.AbortWithStatus(http.StatusTeapot) },
		"/json/:id":     func(c *gin.Context) { c.AbortWithStatusJSON(http.StatusConflict, gin.H{"a": 1}) },
		"/error/:id":    func(c *gin.Context) { _ = c.AbortWithError(http.StatusBadGateway, errors.New("e")) },
		"/panic/:id":    func(*gin.Context) { panic("p") },
		"/hangup/:id":   func(*gin.Context) { panic(http.ErrAbortHandler) },
		"/next/:id":     func(c *gin.Context) { c.Next(); keyOf(c) },
		"/early/:id":    func(c *gin.Context) { _ = core.LeaseFromContext(c.Request.Context()).Release(c); keyOf(c) },
		"/replaced/:id": func(c *gin.Context) { c.Request = c.Request.WithContext(t.Context()) },
	} {
		r.POST(path, ginlock.Serialize(guard), func(c *gin.Context) {
			if core.LeaseFromContext(c.Request.Context()) == nil || adaptertest.Free(t, rdb, "account/1") {
				t.Errorf("%s: no lock", c.FullPath())
			}
			c.Next()
		}, h)
	}
	srv := adaptertest.Serve(t, r)
	for path, want := range map[string]struct {
		status int
		body   string
		after  string
	}{
		"/nothing/1":  {200, "", "<nil> []"},
		"/return/1":   {200, "account/1", "<nil> []"},
		"/status/1":   {202, "", "<nil> []"},
		"/abort/1":    {418, "", "<nil> []"},
		"/json/1":     {409, `{"a":1}`, "<nil> []"},
		"/error/1":    {502, "", "<nil> [e]"},
		"/next/1":     {200, "account/1", "<nil> []"},
		"/early/1":    {200, "account/1", "<nil> []"},
		"/replaced/1": {200, "", "<nil> []"},
	} {
		adaptertest.Do(t, srv, "POST", path).Want(t, want.status, want.body)
		if got := <-after; got != want.after {
			t.Errorf("%s: %s; want %s", path, got, want.after)
		}
	}
	for path, want := range map[string]string{"/panic/1": "p []", "/hangup/1": "net/http: abort Handler []"} {
		if resp, err := srv.Client().Post(srv.URL+path, "", nil); err == nil {
			resp.Body.Close()
			t.Errorf("%s: answered %d", path, resp.StatusCode)
		}
		if got := <-after; got != want {
			t.Errorf("%s: %s; want %s", path, got, want)
		}
	}
}

func TestPanicReachesGinsRecovery(t *testing.T) {
	rdb := redistest.Shared(t).Client(t)
	guard := core.Serialize(adaptertest.LockerOn(t, rdb), "account/{id}")
	r := gin.New()
	r.Use(gin.CustomRecoveryWithWriter(io.Discard, func(c *gin.Context, v any) {
		c.String(http.StatusInternalServerError, "%v free %v", v, adaptertest.Free(t, rdb, "account/1"))
	}))
	r.GET("/:id", ginlock.Serialize(guard), func(*gin.Context) { panic("p") })
	adaptertest.Do(t, adaptertest.Serve(t, r), "GET", "/1").Want(t, 500, "p free true")
}

func TestClientThatLeavesFreesItsPlaceOrItsLock(t *testing.T) {
	rdb := redistest.Shared(t).Client(t)
	locker := adaptertest.LockerOn(t, rdb)
	guard := core.Serialize(locker, "account/{id}", core.Wait(time.Minute))
	inside, outcome := make(chan struct{}), make(chan string, 2)
	r := gin.New()
	r.Use(func(c *gin.Context) {
		c.Next()
		for _, e := range c.Errors {
			refusal := e.Meta.(*core.Refusal)
			outcome <- fmt.Sprintf("%s %v %d %d", refusal.Reason, c.IsAborted(), c.Writer.Status(), c.Writer.Size())
		}
	})
	r.GET("/:id", ginlock.Serialize(guard), func(c *gin.Context) {
		inside <- struct{}{}
		<-c.Request.Context().Done()
		_ = c.Error(c.Request.Context().Err()).SetMeta(&core.Refusal{Reason: "handler"})
	})
	srv := adaptertest.Serve(t, r)
	holder := adaptertest.Leave(t, srv, "/1")
	<-inside
	waiter := adaptertest.Leave(t, srv, "/1")
	adaptertest.Queued(t, locker, 1)
	waiter()
	if got := <-outcome; got != "canceled true 499 -1" { // nothing written by us
		t.Errorf("waiter: %s", got)
	}
	adaptertest.Queued(t, locker, 0)
	holder()
	if got := <-outcome; got != "handler false 200 -1" {
		t.Errorf("holder: %s", got)
	}
	adaptertest.Until(t, "released", func() bool { return len(locker.Held()) == 0 })
}

func TestLeaseLostBeforeTheAnswerIs500AndAfterItOnlyReported(t *testing.T) {
	rdb := redistest.Shared(t).Client(t)
	lost := make(chan core.Loss, 10)
	locker := adaptertest.LockerOn(t, rdb, core.Watchdog(900*time.Millisecond), core.OnLost(func(l core.Loss) { lost <- l }))
	guard := core.Serialize(locker, "account/{id}")
	refused := make(chan string, 10)
	r := gin.New()
	r.Use(func(c *gin.Context) {
		c.Next()
		refused <- fmt.Sprintf("%d %v", len(c.Errors), len(c.Errors) > 0 && errors.Is(c.Errors[0], core.ErrLost))
	})
	lock := func(pattern string, h gin.HandlerFunc) { r.POST(pattern, ginlock.Serialize(guard), h) }
	lock("/before/:id", func(c *gin.Context) {
		adaptertest.Describe(c.Writer.Header())
		c.Status(http.StatusAccepted) // not an answer yet, in gin
		adaptertest.Lose(c.Request.Context(), t, rdb)
	})
	lock("/after/:id", func(c *gin.Context) {
		c.String(http.StatusOK, "done")
		adaptertest.Lose(c.Request.Context(), t, rdb)
	})
	lock("/own/:id", func(c *gin.Context) {
		adaptertest.Lose(c.Request.Context(), t, rdb)
		c.AbortWithStatus(http.StatusConflict)
	})
	srv := adaptertest.Serve(t, adaptertest.InFront(r))
	post := func(path string) adaptertest.Answer { return adaptertest.Do(t, srv, "POST", path) }

	a := post("/before/1")
	a.WantProblem(t, 500, "lost", "")
	a.WantUndescribed(t)
	if got := <-refused; got != "1 true" {
		t.Errorf("c.Errors: %s", got)
	}
	post("/after/1").Want(t, 200, "done")
	post("/own/1").Want(t, 409, "")
	for range 2 {
		if got := <-refused; got != "0 false" {
			t.Errorf("c.Errors: %s", got)
		}
	}
	for range 3 {
		if l := <-lost; l.Key != "account/1" || l.Reason != core.LossDeleted {
			t.Errorf("OnLost: %+v", l)
		}
	}
}

// broken is a writer that a middleware left in front, already closed.
type broken struct{ gin.ResponseWriter }

func (broken) Write([]byte) (int, error) { return 0, errors.New("closed") }

func TestRefusalGoesPastAWriterThatAHandlerLeftInFront(t *testing.T) {
	locker := adaptertest.Locker(t)
	guard := core.Serialize(locker, "account/{id}", core.MaxHold(20*time.Millisecond))
	r := gin.New()
	r.GET("/:id", ginlock.Serialize(guard), func(c *gin.Context) {
		c.Writer = broken{c.Writer}
		<-c.Request.Context().Done()
	})
	adaptertest.Do(t, adaptertest.Serve(t, r), "GET", "/1").WantProblem(t, 500, "max-hold", "")
}

// One URL is one key, in gin as in net/http: %2F with UseRawPath only, since gin
// routes it as a separator without.
func TestKeysAreThoseOfHTTPLock(t *testing.T) {
	locker := adaptertest.Locker(t)
	guard := core.Serialize(locker, "account/{id}")
	mux := http.NewServeMux()
	mux.Handle("/std/{id}/x", httplock.Serialize(guard)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, core.LeaseFromContext(r.Context()).Key())
	})))
	for _, prefix := range []string{"/gin/", "/raw/"} {
		r := gin.New()
		r.UseRawPath = prefix == "/raw/"
		r.GET(prefix+":id/x", ginlock.Serialize(guard), keyOf)
		mux.Handle(prefix, r)
	}
	srv := adaptertest.Serve(t, mux)
	get := func(path string) adaptertest.Answer { return adaptertest.Do(t, srv, "GET", path) }
	for _, p := range adaptertest.Paths {
		want := get("/std/" + p.Segment + "/x").Body
		if !strings.HasPrefix(want, "account/") {
			t.Fatalf("%s: %s", p.Segment, want)
		}
		get("/raw/"+p.Segment+"/x").Want(t, 200, want)
		if !p.Slash {
			get("/gin/"+p.Segment+"/x").Want(t, 200, want)
		}
	}
	// The exception of the package comment: with UseRawPath gin itself takes a +
	// for a blank where the path has a raw form. The key is of what c.Param says.
	get("/raw/a+b%2Fc/x").Want(t, 200, "account/a%20b%2Fc")
}

func TestUseAndGroupsLockRoutesAndPassWhatMatchesNone(t *testing.T) {
	locker := adaptertest.Locker(t)
	r := gin.New()
	r.HandleMethodNotAllowed = true
	r.Use(ginlock.Serialize(core.Serialize(locker, "all/{header.X-Tenant}")))
	group := r.Group("/accounts/:id", ginlock.Serialize(core.Serialize(locker, "account/{id}")))
	group.GET("/x", func(c *gin.Context) {
		var keys []string
		for _, h := range locker.Held() {
			keys = append(keys, h.Key)
		}
		c.String(http.StatusOK, "%d %s", len(keys), core.LeaseFromContext(c.Request.Context()).Key())
	})
	r.NoRoute(func(c *gin.Context) {
		c.String(http.StatusNotFound, "none %v", core.LeaseFromContext(c.Request.Context()) == nil)
	})
	srv := adaptertest.Serve(t, r)
	tenant := func(r *http.Request) { r.Header.Set("X-Tenant", "a") }
	adaptertest.Do(t, srv, "GET", "/accounts/1/x", tenant).Want(t, 200, "2 account/1")
	adaptertest.Do(t, srv, "GET", "/accounts/1/x").WantProblem(t, 400, "bad-key", "")
	adaptertest.Do(t, srv, "GET", "/accounts/1/y").Want(t, 404, "none true")
	if a := adaptertest.Do(t, srv, "POST", "/accounts/1/x"); a.Status != 405 {
		t.Errorf("%d %s", a.Status, a.Body)
	}
}

func TestSameRuleTwiceReenters(t *testing.T) {
	guard := core.Serialize(adaptertest.Locker(t), "account/{id}", core.Wait(0))
	r := gin.New()
	r.GET("/:id", ginlock.Serialize(guard), ginlock.Serialize(guard), keyOf)
	srv := adaptertest.Serve(t, r)
	for range 2 {
		adaptertest.Do(t, srv, "GET", "/1").Want(t, 200, "account/1")
	}
}

func TestRenderReplacesTheAnswerAndCanFallBack(t *testing.T) {
	guard := core.Serialize(adaptertest.Locker(t), "t/{header.X}")
	never := func(*gin.Context) { t.Error("the handler ran") }
	r := gin.New()
	r.GET("/", ginlock.Serialize(guard, ginlock.Render(func(c *gin.Context, refusal *core.Refusal) {
		if refusal.Reason != core.ReasonBadKey || !errors.Is(refusal.Err, core.ErrKey) || !c.IsAborted() {
			t.Errorf("refusal %+v", refusal)
		}
		if c.Query("fallback") != "" {
			ginlock.Problem(c, refusal)
			return
		}
		c.String(http.StatusForbidden, "say who you are")
	})), never)
	r.GET("/nil", ginlock.Serialize(guard, ginlock.Render(nil)), never)
	srv := adaptertest.Serve(t, r)
	adaptertest.Do(t, srv, "GET", "/").Want(t, 403, "say who you are")
	adaptertest.Do(t, srv, "GET", "/?fallback=1").WantProblem(t, 400, "bad-key", "")
	adaptertest.Do(t, srv, "GET", "/nil").WantProblem(t, 400, "bad-key", "")
}

func TestKeyFuncReadsTheBodyAndAWildcardAndTheHandlerReadsTheBodyAgain(t *testing.T) {
	locker := adaptertest.Locker(t)
	guard := core.Serialize(locker, "", core.KeyFunc(func(_ context.Context, req core.Request) ([]string, error) {
		var order struct{ Account string }
		body, err := req.Body(1 << 20)
		if err == nil {
			err = json.Unmarshal(body, &order)
		}
		if err != nil {
			return nil, fmt.Errorf("%w: %w", core.ErrKey, err)
		}
		c := req.Native().(*gin.Context)
		key, err := core.Key(c.Param("path"), order.Account)
		return []string{key}, err
	}))
	r := gin.New()
	r.POST("/files/*path", ginlock.Serialize(guard), func(c *gin.Context) {
		var order struct{ Account string }
		if err := c.ShouldBindJSON(&order); err != nil {
			t.Error(err)
		}
		keyOf(c)
	})
	a := adaptertest.Do(t, adaptertest.Serve(t, r), "POST", "/files/a/b", func(r *http.Request) {
		body := `{"account":"x/1"}`
		r.Body, r.ContentLength = io.NopCloser(strings.NewReader(body)), int64(len(body))
	})
	a.Want(t, 200, "%2Fa%2Fb/x%2F1")
}

func TestStreamsAndResponseControllerWork(t *testing.T) {
	guard := core.Serialize(adaptertest.Locker(t), "stream")
	next := make(chan bool)
	r := gin.New()
	r.Use(ginlock.Serialize(guard))
	r.GET("/sse", func(c *gin.Context) {
		more := true
		c.Stream(func(io.Writer) bool { // gin flushes after each step
			if !more {
				more = <-next
				return more
			}
			c.SSEvent("", "x")
			more = false
			return true
		})
	})
	r.GET("/controller", func(c *gin.Context) {
		rc := http.NewResponseController(c.Writer)
		for more := true; more; more = <-next {
			_, err := c.Writer.WriteString("data:x\n\n")
			if err := errors.Join(err, rc.Flush(), rc.SetWriteDeadline(time.Now().Add(time.Minute)), rc.EnableFullDuplex()); err != nil {
				t.Error(err)
			}
		}
	})
	r.GET("/hijack", func(c *gin.Context) {
		conn, rw, err := c.Writer.Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_, err = rw.WriteString("HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nraw")
		if err := errors.Join(err, rw.Flush()); err != nil {
			t.Error(err)
		}
	})
	srv := adaptertest.Serve(t, r)
	for _, path := range []string{"/sse", "/controller"} {
		adaptertest.Events(t, srv, path, next)
	}
	adaptertest.Do(t, srv, "GET", "/hijack").Want(t, 200, "raw")
}

func TestMultipartFilesAreRemovedAlsoWhereTheRequestWasReplacedAgain(t *testing.T) {
	guard := core.Serialize(adaptertest.Locker(t), "upload")
	file := make(chan string, 1)
	upload := func(c *gin.Context) {
		name, err := adaptertest.OnDisk(c.Request)
		if err != nil {
			t.Error(err)
		}
		file <- name
	}
	r := gin.New()
	r.POST("/", ginlock.Serialize(guard), upload)
	r.POST("/replaced", ginlock.Serialize(guard), func(c *gin.Context) {
		type key struct{}
		c.Request = c.Request.WithContext(context.WithValue(c.Request.Context(), key{}, 1))
	}, upload)
	for _, path := range []string{"/", "/replaced"} {
		srv := adaptertest.Serve(t, r)
		adaptertest.Upload(t, srv, path)
		srv.Close() // waits until the server is done with the request
		if _, err := os.Stat(<-file); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: the temporary file was left behind: %v", path, err)
		}
	}
}

func TestGinContextEndsWithTheLeaseIfItFallsBack(t *testing.T) {
	rdb := redistest.Shared(t).Client(t)
	guard := core.Serialize(adaptertest.LockerOn(t, rdb, core.Watchdog(900*time.Millisecond)), "account/{id}")
	r := gin.New()
	r.ContextWithFallback = true
	r.GET("/:id", ginlock.Serialize(guard), func(c *gin.Context) { adaptertest.Lose(c, t, rdb) })
	adaptertest.Do(t, adaptertest.Serve(t, r), "GET", "/1").WantProblem(t, 500, "lost", "")
}
