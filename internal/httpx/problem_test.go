package httpx_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/adapter/adaptertest"
	"github.com/interlock-go/interlock/core/reason"
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

// A client of the Universal Commerce Protocol that gets 409 makes a new key: for any other
// reason that would be a second payment.
func TestUnderUniversalCommerce409IsForAnotherPayloadOnly(t *testing.T) {
	for why := range adaptertest.Answers {
		w := httptest.NewRecorder()
		httpx.Write(w, &core.Refusal{Reason: why, Profile: reason.UniversalCommerce})
		if (w.Code == http.StatusConflict) != (why == reason.KeyReused) {
			t.Errorf("%s: %d", why, w.Code)
		}
	}
}

func TestAProblemIsFixedTextWithoutTheError(t *testing.T) {
	w := httptest.NewRecorder()
	httpx.Write(w, &core.Refusal{Reason: reason.Held, Err: errors.New("account/secret is held")})
	want := `{"type":"urn:interlock:problem:held","title":"Locked","status":423,` +
		`"detail":"The resource is locked by another request. Nothing was done."}`
	if got := w.Body.String(); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}
