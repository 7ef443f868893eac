package ginlock_test

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"os"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"go.uber.org/goleak"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/ginlock"
	"github.com/interlock-go/interlock/internal/testkit"
)

func TestMain(m *testing.M) {
	gin.SetMode(gin.TestMode)
	goleak.VerifyTestMain(m)
}

// keyOf answers with the key of its lease.
func keyOf(c *gin.Context) {
	c.String(http.StatusOK, "%s", core.LeaseFromContext(c.Request.Context()).Key())
}

// broken is a writer that a middleware left in front, already closed.
type broken struct{ gin.ResponseWriter }

func (broken) Write([]byte) (int, error) { return 0, errors.New("closed") }

func TestRefusalGoesPastAWriterThatAHandlerLeftInFront(t *testing.T) {
	locker := testkit.Locker(t)
	guard := core.Serialize(locker, "account/{id}", core.MaxHold(20*time.Millisecond))
	r := gin.New()
	r.GET("/:id", ginlock.Guard(guard), func(c *gin.Context) {
		c.Writer = broken{c.Writer}
		<-c.Request.Context().Done()
	})
	testkit.Do(t, testkit.Serve(t, r), "GET", "/1").WantProblem(t, 500, "max-hold", "")
}

// Without UseRawPath gin decodes a path before it routes it. One URL is one key all
// the same; %2F is a separator then.
func TestKeysWithAndWithoutTheRawPath(t *testing.T) {
	guard := core.Serialize(testkit.Locker(t), "account/{id}")
	serve := func(raw bool) func(segment string) testkit.Answer {
		r := gin.New()
		r.UseRawPath = raw
		r.GET("/accounts/:id/x", ginlock.Guard(guard), keyOf)
		srv := testkit.Serve(t, r)
		return func(segment string) testkit.Answer {
			return testkit.Do(t, srv, "GET", "/accounts/"+segment+"/x")
		}
	}
	bare, raw := serve(false), serve(true)
	for _, segment := range []string{
		"A", "%41", "%252F", "%2541", "%7Bid%7D", "%0D%0A", "%00", "%FF", "%C3%B6", "ö", "a%20b", "a+b", "a%2Bb", "a;b=c", "2f3a:1", "-._~", "%2e%2e",
	} {
		value, err := url.PathUnescape(segment)
		if err != nil {
			t.Fatal(err)
		}
		want, err := core.Key("account", value)
		if err != nil {
			t.Fatal(err)
		}
		bare(segment).Want(t, 200, want)
		raw(segment).Want(t, 200, want)
	}
	raw("a%2fb").Want(t, 200, "account/a%2Fb")
	bare("").WantProblem(t, 400, "bad-key", "") // gin matches it
	// The exception of the package comment: with UseRawPath gin itself takes a + for a blank
	// where the path has a raw form. The key follows c.Param.
	raw("a+b%2Fc").Want(t, 200, "account/a%20b%2Fc")
}

// tenantKey is the key of a value in the context, which is a string in gin before 1.12.
type tenantKey struct{}

func TestValuesUnderKeysOfEveryTypeAreFound(t *testing.T) {
	key := any("tenant")
	set := func(c *gin.Context) {
		switch c := any(c).(type) {
		case interface{ Set(key string, value any) }:
			c.Set("tenant", "a")
		case interface{ Set(key, value any) }:
			c.Set(tenantKey{}, "a")
		}
	}
	if _, typed := any(new(gin.Context)).(interface{ Set(key, value any) }); typed {
		key = tenantKey{}
	}
	guard := core.Serialize(testkit.Locker(t), "t/{ctx.tenant}/{ctx.user}",
		core.ContextFunc("tenant", core.FromContext(key)), core.ContextFunc("user", core.FromContext("user")))
	r := gin.New()
	r.GET("/", set, func(c *gin.Context) { c.Set("user", "b") }, ginlock.Guard(guard), func(c *gin.Context) {
		c.String(http.StatusOK, core.LeaseFromContext(c.Request.Context()).Key())
	})
	testkit.Do(t, testkit.Serve(t, r), "GET", "/").Want(t, 200, "t/a/b")
}

func TestUseAndGroupsLockRoutesAndPassWhatMatchesNone(t *testing.T) {
	locker := testkit.Locker(t)
	r := gin.New()
	r.HandleMethodNotAllowed = true
	r.Use(ginlock.Guard(core.Serialize(locker, "all/{header.X-Tenant}")))
	group := r.Group("/accounts/:id", ginlock.Guard(core.Serialize(locker, "account/{id}")))
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
	srv := testkit.Serve(t, r)
	tenant := func(r *http.Request) { r.Header.Set("X-Tenant", "a") }
	testkit.Do(t, srv, "GET", "/accounts/1/x", tenant).Want(t, 200, "2 account/1")
	testkit.Do(t, srv, "GET", "/accounts/1/x").WantProblem(t, 400, "bad-key", "")
	testkit.Do(t, srv, "GET", "/accounts/1/y").Want(t, 404, "none true")
	if a := testkit.Do(t, srv, "POST", "/accounts/1/x"); a.Status != 405 {
		t.Errorf("%d %s", a.Status, a.Body)
	}
}

func TestMultipartFilesAreRemovedWhereTheRequestWasReplacedAgain(t *testing.T) {
	guard := core.Serialize(testkit.Locker(t), "upload")
	file := make(chan string, 1)
	upload := func(c *gin.Context) {
		name, err := testkit.OnDisk(c.Request)
		if err != nil {
			t.Error(err)
		}
		file <- name
	}
	r := gin.New()
	r.POST("/replaced", ginlock.Guard(guard), func(c *gin.Context) {
		type key struct{}
		c.Request = c.Request.WithContext(context.WithValue(c.Request.Context(), key{}, 1))
	}, upload)
	srv := testkit.Serve(t, r)
	testkit.Upload(t, srv, "/replaced")
	srv.Close() // waits until the server is done with the request
	if _, err := os.Stat(<-file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the temporary file was left behind: %v", err)
	}
}

func TestGinContextEndsWithTheLeaseIfItFallsBack(t *testing.T) {
	store := memstore.New()
	guard := core.Serialize(testkit.LockerOn(t, store), "account/{id}")
	r := gin.New()
	r.ContextWithFallback = true
	r.GET("/:id", ginlock.Guard(guard), func(c *gin.Context) { testkit.Lose(c, t, store) })
	testkit.Do(t, testkit.Serve(t, r), "GET", "/1").WantProblem(t, 500, "lost", "")
}
