package httpx_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/internal/httpx"
)

// An answer without a status would be a 200 of net/http's.
func TestAReasonThatIsNotInTheTableIsAnInternalError(t *testing.T) {
	w := httptest.NewRecorder()
	httpx.Write(w, &core.Refusal{Reason: "another"})
	if body := w.Body.String(); w.Code != http.StatusInternalServerError || !strings.Contains(body, "urn:interlock:problem:internal") {
		t.Errorf("%d %s", w.Code, body)
	}
}
