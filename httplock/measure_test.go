package httplock_test

import (
	"io"
	"net/http"
	"testing"

	"github.com/interlock-go/interlock/httplock"
	"github.com/interlock-go/interlock/internal/testkit"
)

func TestMeasureBodyTellsABodyThatWasReadInPart(t *testing.T) {
	h := httplock.Idempotent(testkit.Engine(t))(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(w, r.Body)
	}))
	testkit.WantMeasured(t, testkit.Serve(t, httplock.MeasureBody(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		testkit.ReadIn(r)
		h.ServeHTTP(w, r)
	}))))
}
