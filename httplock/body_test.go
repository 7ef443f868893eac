package httplock_test

import (
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/httplock"
	"github.com/interlock-go/interlock/internal/testkit"
)

// firstRead calls a function at the first read of a body.
type firstRead struct {
	io.ReadCloser
	once sync.Once
	tell func()
}

func (b *firstRead) Read(p []byte) (int, error) {
	b.once.Do(b.tell)
	return b.ReadCloser.Read(p)
}

func TestASlowBodyDoesNotHoldTheLock(t *testing.T) {
	locker := testkit.Locker(t)
	h := http.NewServeMux()
	for path, wait := range map[string]time.Duration{"/": 0, "/slow": time.Minute} {
		guard := core.Serialize(locker, "account/1", core.Wait(wait), core.ReadBody(10))
		h.Handle(path, httplock.Guard(guard)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })))
	}
	reading := make(chan struct{}, 1000)
	srv := testkit.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Body = &firstRead{ReadCloser: r.Body, tell: func() { reading <- struct{}{} }}
		h.ServeHTTP(w, r)
	}))
	body, rest := io.Pipe()
	slow := make(chan testkit.Answer)
	go func() {
		slow <- testkit.Do(t, srv, http.MethodPost, "/slow", func(r *http.Request) { r.Body, r.ContentLength = body, 4 })
	}()
	if _, err := io.WriteString(rest, "sl"); err != nil {
		t.Fatal(err)
	}
	<-reading
	with := func(s string) func(*http.Request) {
		return func(r *http.Request) { r.Body, r.ContentLength = io.NopCloser(strings.NewReader(s)), int64(len(s)) }
	}
	testkit.Do(t, srv, http.MethodPost, "/", with("fast")).Want(t, 200, "fast")
	testkit.Do(t, srv, http.MethodPost, "/", with("far too long")).WantProblem(t, 413, "body-too-large", "")
	if _, err := io.WriteString(rest, "ow"); err != nil {
		t.Fatal(err)
	}
	_ = rest.Close()
	(<-slow).Want(t, 200, "slow")
}
