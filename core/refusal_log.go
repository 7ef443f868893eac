package core

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"regexp"
	"strconv"
	"strings"

	"github.com/interlock-go/interlock/core/observe"
	"github.com/interlock-go/interlock/core/reason"
)

// LogError returns an error for loggers. Its text contains the reason, the name of
// the guard and the hashes of the keys ([Hashed]), but no key and no address of a
// server. The error unwraps to [Refusal.Err], which [errors.Is] finds; the text of
// that error does contain them.
func (r *Refusal) LogError() error { return &loggedRefusal{r} }

type loggedRefusal struct{ refusal *Refusal }

func (e *loggedRefusal) Error() string { return e.refusal.String() }
func (e *loggedRefusal) Unwrap() error { return e.refusal.Err }

// String describes the refusal in one line, with the text of [Refusal.LogError].
func (r *Refusal) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "interlock: request refused: %s, rule=%s", r.Reason, r.Rule)
	for i, key := range r.keys {
		name := ","
		if i == 0 {
			name = " key_hash="
		}
		b.WriteString(name + Hashed(key).Hash())
	}
	if text := r.cause(); text != "" {
		b.WriteString(" error=" + text)
	}
	return b.String()
}

// LogValue implements [slog.LogValuer], with the text of [Refusal.LogError].
func (r *Refusal) LogValue() slog.Value { return slog.StringValue(r.String()) }

// cause is the text of the error without what identifies a user or a server.
func (r *Refusal) cause() string {
	if r.Err == nil {
		return ""
	}
	text := observe.RootCause(r.Err).Error() // what wraps it names the key
	switch r.Reason {
	case reason.BadKey, reason.BodyTooLarge, reason.Misconfigured, reason.Internal, reason.KeyMissing, reason.KeyMalformed, reason.NoPrincipal:
		text = r.Err.Error() // it says what is to blame: a part of the template, a function
		for _, key := range r.keys {
			text = strings.ReplaceAll(text, strconv.Quote(key), Hashed(key).Hash())
		}
	}
	if dns := (*net.DNSError)(nil); errors.As(r.Err, &dns) {
		text = dns.Err // without the name that was looked up
	}
	for _, key := range r.keys {
		if strings.Contains(text, key) {
			return ""
		}
	}
	return address.ReplaceAllString(text, "(address)")
}

// address is a host with a port.
var address = regexp.MustCompile(`(?:[\w.-]+|\[[0-9A-Fa-f:.%]+\]):\d{1,5}\b`)
