package httpx

import (
	"net/http"

	"github.com/interlock-go/interlock/core"
)

// ClientClosedRequest is the status for access logs and outer middleware where
// the client left before it was answered, in frameworks that will have one:
// nginx's. No client receives it.
const ClientClosedRequest = 499

// Problem sets the header of a refusal ([core.Refusal.HTTP]), and returns its status, 0 if the
// client has gone, and its body.
func Problem(refusal *core.Refusal, header http.Header) (status int, body []byte) {
	if status, body = refusal.HTTP(header.Set); status != 0 {
		header.Del("Content-Length") // of the handler's answer
	}
	return status, body
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
	_, body := m.Refusal.HTTP(func(name, value string) {
		if name == "Content-Type" {
			m.Header.Set(name, value)
		}
	})
	return body, nil
}

// String is the text for clients, for those who print the message instead.
func (m Message) String() string { return m.Refusal.Reason.Text() }
