package httpx

import (
	"cmp"
	"encoding/json"
	"net/http"
	"strings"

	"github.com/interlock-go/interlock/core/reason"
)

// form is how refusals look under a profile.
type form struct {
	contentType string
	// statuses are where the form differs from the table.
	statuses map[reason.Reason]int
	// document makes the body.
	document func(why reason.Reason, status int) any

	bodies map[reason.Reason][]byte // encoded once: their text is fixed
}

// forms are the forms of all profiles.
var forms = func() map[reason.Profile]*form {
	all := map[reason.Profile]*form{
		reason.IETFDraft:       {contentType: ContentType, document: problemDetails},
		reason.AgenticCommerce: {contentType: "application/json", document: agenticError},
		reason.UniversalCommerce: {
			contentType: "application/json",
			document:    universalError,
			// 409 says that a key was used with another body, and that a new key is in order.
			// A client that does not read the code must not learn this about other codes.
			statuses: map[reason.Reason]int{
				reason.KeyReused:           http.StatusConflict,
				reason.Superseded:          http.StatusLocked,
				reason.HeldByCaller:        http.StatusLocked,
				reason.InFlight:            http.StatusServiceUnavailable,
				reason.OutcomeUnknown:      http.StatusInternalServerError,
				reason.ResponseUnavailable: http.StatusInternalServerError,
			},
		},
	}
	for _, f := range all {
		f.bodies = make(map[reason.Reason][]byte, len(statuses))
		for why := range statuses {
			b, err := json.Marshal(f.document(why, f.status(why)))
			if err != nil {
				panic(err) // strings and numbers
			}
			f.bodies[why] = b
		}
	}
	return all
}()

// formOf returns the form of a profile, and the default for a profile that is not known.
func formOf(p reason.Profile) *form {
	if f, ok := forms[p]; ok {
		return f
	}
	return forms[reason.IETFDraft]
}

// status returns the status of a reason that is in the table.
func (f *form) status(why reason.Reason) int { return cmp.Or(f.statuses[why], statuses[why]) }

// problemDetails is RFC 9457, 3.
func problemDetails(why reason.Reason, status int) any {
	return struct {
		Type   string `json:"type"`
		Title  string `json:"title"`
		Status int    `json:"status"`
		Detail string `json:"detail"`
	}{Type(why), http.StatusText(status), status, why.Text()}
}

// agenticError is the Agentic Commerce Protocol's schema Error, which has no other members
// (RFC "Agentic Checkout", 3 and 6.4).
func agenticError(why reason.Reason, status int) any {
	kind := "invalid_request"
	switch status {
	case http.StatusServiceUnavailable, http.StatusLocked, http.StatusTooManyRequests:
		kind = "service_unavailable"
	case http.StatusInternalServerError:
		kind = "processing_error"
	}
	return struct {
		Type    string `json:"type"`
		Code    string `json:"code"`
		Message string `json:"message"`
	}{kind, code(why), why.Text()}
}

// universalError is the body of a protocol error of the Universal Commerce Protocol
// (Checkout REST binding, "Error Responses").
func universalError(why reason.Reason, _ int) any {
	return struct {
		Code    string `json:"code"`
		Content string `json:"content"`
	}{code(why), why.Text()}
}

// code is the name of a reason in the style of both protocols, and where the Agentic
// Commerce Protocol has a name, that name.
func code(why reason.Reason) string {
	switch why {
	case reason.KeyMissing:
		return "idempotency_key_required"
	case reason.KeyReused:
		return "idempotency_conflict"
	}
	return strings.ReplaceAll(string(why), "-", "_")
}
