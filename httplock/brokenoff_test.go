package httplock_test

import (
	"io"
	"net/http"
	"testing"

	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/httplock"
	"github.com/interlock-go/interlock/internal/adaptertest"
)

// A body whose source broke off must not be replayed as if it were whole.
func TestAResponseShorterThanItsContentLengthIsAFailure(t *testing.T) {
	engine, err := idempotency.New(memstore.New(), idempotency.Global())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = engine.Close(t.Context()) })
	runs := 0
	srv := adaptertest.Serve(t, httplock.Idempotent(engine)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		runs++
		w.Header().Set("Content-Length", "10")
		w.WriteHeader(http.StatusOK)
		_, _ = io.WriteString(w, "01234")
		if runs == 2 {
			_, _ = io.WriteString(w, "56789")
		}
	})))
	adaptertest.Post(t, srv, "/").WantOwn(t, 500, "")
	adaptertest.Post(t, srv, "/").WantOwn(t, 200, "0123456789")
	adaptertest.Post(t, srv, "/").WantReplay(t, 200, "0123456789")
}
