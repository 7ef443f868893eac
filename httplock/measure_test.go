package httplock_test

import (
	"io"
	"net/http"
	"testing"

	"github.com/interlock-go/interlock/httplock"
	"github.com/interlock-go/interlock/internal/adaptertest"
)

func TestMeasureBodyTellsABodyThatWasReadInPart(t *testing.T) {
	h := httplock.Idempotent(adaptertest.Engine(t))(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(w, r.Body)
	}))
	adaptertest.WantMeasured(t, adaptertest.Serve(t, httplock.MeasureBody(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		adaptertest.ReadIn(r)
		h.ServeHTTP(w, r)
	}))))
}
