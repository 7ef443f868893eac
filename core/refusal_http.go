package core

import (
	"cmp"
	"encoding/json"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/interlock-go/interlock/core/internal/carrier"
	"github.com/interlock-go/interlock/core/reason"
)

// HTTP returns a refusal as a response of HTTP, in the form of its Profile: the status and the
// body. It calls set with each header field of the response; set replaces the field, as
// http.Header.Set does. A status of 0 says that the client has gone: nothing is to be written, and
// set was not called.
//
//	status, body := refusal.HTTP(w.Header().Set)
//
// Without a profile the body is problem details (RFC 9457) of type
// urn:interlock:problem:<reason>, with fixed text. The caller must not change the body. It deletes a
// Content-Length that the handler has set.
func (r *Refusal) HTTP(set func(name, value string)) (status int, body []byte) {
	form := formOf(r.Profile)
	why := r.Reason
	if _, known := form.bodies[why]; !known {
		why = reason.Internal
	}
	if status = form.status(why); status == 0 {
		return 0, nil
	}
	// Middleware in front may have set them for the handler's answer.
	set("Cache-Control", "no-store")
	set("Content-Type", form.contentType)
	set(carrier.ResultHeader, carrier.Result(string(r.Reason), r.Ran))
	if later := r.RetryAfter(); later > 0 {
		set("Retry-After", strconv.Itoa(int(later/time.Second)))
	}
	return status, form.bodies[why]
}

// form is how refusals look under a profile.
type form struct {
	contentType string
	// statuses are where the form differs from package reason.
	statuses map[reason.Reason]int
	// document makes the body.
	document func(why reason.Reason, status int) any

	bodies map[reason.Reason][]byte // encoded once: their text is fixed
}

// forms are the forms of all profiles.
var forms = sync.OnceValue(func() map[reason.Profile]*form {
	all := map[reason.Profile]*form{
		reason.IETFDraft:       {contentType: "application/problem+json", document: problemDetails},
		reason.AgenticCommerce: {contentType: "application/json", document: agenticError},
		reason.UniversalCommerce: {
			contentType: "application/json",
			document:    universalError,
			// 409 says that a key was used with another body, and that a new key is in order.
			// A client that does not read the code must not learn this about other codes.
			statuses: map[reason.Reason]int{
				reason.KeyReused:           409,
				reason.Superseded:          423,
				reason.HeldByCaller:        423,
				reason.InFlight:            503,
				reason.OutcomeUnknown:      500,
				reason.ResponseUnavailable: 500,
			},
		},
	}
	for _, f := range all {
		f.bodies = make(map[reason.Reason][]byte)
		for _, why := range reason.All() {
			b, err := json.Marshal(f.document(why, f.status(why)))
			if err != nil {
				panic(err) // strings and numbers
			}
			f.bodies[why] = b
		}
	}
	return all
})

// formOf returns the form of a profile, and the default for a profile that is not known.
func formOf(p reason.Profile) *form {
	if f, ok := forms()[p]; ok {
		return f
	}
	return forms()[reason.IETFDraft]
}

// status returns the status of a reason.
func (f *form) status(why reason.Reason) int { return cmp.Or(f.statuses[why], why.HTTP()) }

// problemDetails is RFC 9457, 3.
func problemDetails(why reason.Reason, status int) any {
	return struct {
		Type   string `json:"type"`
		Title  string `json:"title"`
		Status int    `json:"status"`
		Detail string `json:"detail"`
	}{"urn:interlock:problem:" + string(why), titles[status], status, why.Text()}
}

// titles are the names of the statuses of refusals (RFC 9110, 15; RFC 6585; RFC 4918). Package
// net/http would come into each program with a lock.
var titles = map[int]string{
	400: "Bad Request",
	406: "Not Acceptable",
	408: "Request Timeout",
	409: "Conflict",
	410: "Gone",
	412: "Precondition Failed",
	413: "Request Entity Too Large",
	415: "Unsupported Media Type",
	422: "Unprocessable Entity",
	423: "Locked",
	428: "Precondition Required",
	429: "Too Many Requests",
	500: "Internal Server Error",
	503: "Service Unavailable",
}

// agenticError is the Agentic Commerce Protocol's schema Error, which has no other members
// (RFC "Agentic Checkout", 3 and 6.4).
func agenticError(why reason.Reason, status int) any {
	kind := "invalid_request"
	switch status {
	case 423, 429, 503:
		kind = "service_unavailable"
	case 500:
		kind = "processing_error"
	}
	return struct {
		Type    string `json:"type"`
		Code    string `json:"code"`
		Message string `json:"message"`
	}{kind, codeOf(why), why.Text()}
}

// universalError is the body of a protocol error of the Universal Commerce Protocol
// (Checkout REST binding, "Error Responses").
func universalError(why reason.Reason, _ int) any {
	return struct {
		Code    string `json:"code"`
		Content string `json:"content"`
	}{codeOf(why), why.Text()}
}

// codeOf is the name of a reason in the style of both protocols, and where the Agentic
// Commerce Protocol has a name, that name.
func codeOf(why reason.Reason) string {
	switch why {
	case reason.KeyMissing:
		return "idempotency_key_required"
	case reason.KeyReused:
		return "idempotency_conflict"
	}
	return strings.ReplaceAll(string(why), "-", "_")
}
