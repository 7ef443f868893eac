package httpx

import (
	"net/http"
	"strconv"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/reason"
)

// ContentType is the media type of a problem (RFC 9457, 3).
const ContentType = "application/problem+json"

// ClientClosedRequest is the status for access logs and outer middleware where
// the client left before it was answered, in frameworks that will have one:
// nginx's. It is not in the table, since no client is left to receive it.
const ClientClosedRequest = 499

// statuses is the one table of statuses for HTTP; a profile says where it differs. A reason without a status has
// no answer: the client has gone.
var statuses = map[reason.Reason]int{
	reason.BadKey:         http.StatusBadRequest,
	reason.BodyTooLarge:   http.StatusRequestEntityTooLarge,
	reason.BodyIncomplete: http.StatusBadRequest,
	reason.BodyTimeout:    http.StatusRequestTimeout,
	reason.Held:           http.StatusLocked,
	reason.Full:           http.StatusTooManyRequests,
	reason.QueueFull:      http.StatusLocked,
	reason.Superseded:     http.StatusConflict,
	reason.HeldByCaller:   http.StatusConflict,
	reason.StaleToken:     http.StatusPreconditionFailed,
	reason.TokenMissing:   http.StatusPreconditionRequired,
	reason.TokenMalformed: http.StatusBadRequest,
	reason.PrincipalLimit: http.StatusTooManyRequests,
	reason.Deadline:       http.StatusLocked,
	reason.Canceled:       0,
	reason.Unavailable:    http.StatusServiceUnavailable,
	reason.NotReplicated:  http.StatusServiceUnavailable,
	reason.KeyOccupied:    http.StatusInternalServerError,
	reason.Closing:        http.StatusServiceUnavailable,
	reason.Lost:           http.StatusInternalServerError,
	reason.MaxHold:        http.StatusInternalServerError,
	reason.Misconfigured:  http.StatusInternalServerError,
	reason.Internal:       http.StatusInternalServerError,

	// Of idempotent endpoints (the IETF draft "The Idempotency-Key HTTP Header
	// Field", 2.6 and 2.7).
	reason.KeyMissing:          http.StatusBadRequest,
	reason.KeyMalformed:        http.StatusBadRequest,
	reason.NoPrincipal:         http.StatusBadRequest,
	reason.ContentType:         http.StatusUnsupportedMediaType,
	reason.KeyReused:           http.StatusUnprocessableEntity,
	reason.InFlight:            http.StatusConflict,
	reason.OutcomeUnknown:      http.StatusConflict,
	reason.ResponseUnavailable: http.StatusConflict,
	reason.ResponseTooLarge:    http.StatusInternalServerError,
	reason.RolledBack:          http.StatusServiceUnavailable,
	reason.NotAcceptable:       http.StatusNotAcceptable,
	reason.KeyExpired:          http.StatusGone,
	reason.NoRecord:            http.StatusServiceUnavailable,
}

// Type returns the type of the problem of a reason.
func Type(why reason.Reason) string { return "urn:interlock:problem:" + string(why) }

// Problem is a refusal as an HTTP response, in the form of its profile: its status (0 for
// none at all), the headers it sets and its body.
func Problem(refusal *core.Refusal, header http.Header) (status int, body []byte) {
	why := known(refusal.Reason)
	form := formOf(refusal.Profile)
	status = form.status(why)
	if status == 0 {
		return 0, nil
	}
	// Middleware in front may have set them for the handler's answer.
	header.Del("Content-Length")
	header.Set("Cache-Control", "no-store")
	header.Set("Content-Type", form.contentType)
	header.Set(idempotency.ResultHeader, idempotency.Result(refusal))
	if later := refusal.RetryAfter(); later > 0 {
		header.Set("Retry-After", strconv.Itoa(int(later/time.Second)))
	}
	return status, form.bodies[why]
}

// known returns the reason, or [reason.Internal] for a reason that the table does not
// have: an empty answer would look like a success.
func known(why reason.Reason) reason.Reason {
	if _, ok := statuses[why]; !ok {
		return reason.Internal
	}
	return why
}

// Write writes a refusal. A client that has gone gets nothing.
func Write(w http.ResponseWriter, refusal *core.Refusal) {
	status, body := Problem(refusal, w.Header())
	if status == 0 {
		return
	}
	w.WriteHeader(status)
	_, _ = w.Write(body) // the client may have gone meanwhile
}

// Message is the body of a problem for a framework that encodes errors as JSON
// itself (echo). It sets the Content-Type while it is encoded, after the
// framework has chosen its own and before the first byte: only then is it known
// that this document, and no error page of the application, is the answer.
type Message struct {
	Refusal *core.Refusal
	Header  http.Header // of the response
}

// MarshalJSON returns the body that Problem returns.
func (m Message) MarshalJSON() ([]byte, error) {
	form := formOf(m.Refusal.Profile)
	m.Header.Set("Content-Type", form.contentType)
	return form.bodies[known(m.Refusal.Reason)], nil
}

// String is the text for clients, for those who print the message instead.
func (m Message) String() string { return m.Refusal.Reason.Text() }
