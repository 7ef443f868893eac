package core

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"regexp"
	"slices"
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

// cause is the text of the error without names of users and servers.
func (r *Refusal) cause() string {
	if r.Err == nil {
		return ""
	}
	text := observe.RootCause(r.Err).Error() // what wraps it names the key
	switch r.Reason {
	case reason.BadKey, reason.BodyTooLarge, reason.Misconfigured, reason.Internal, reason.KeyMissing, reason.KeyMalformed, reason.NoPrincipal:
		text = r.Err.Error() // it names the cause: a part of the template, a function
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
	return address.ReplaceAllStringFunc(text, func(found string) string {
		switch {
		case strings.HasPrefix(found, "user_script:"): // a line of a script, in an error of Redis
			return found
		case strings.HasPrefix(found, "lookup "):
			return "lookup (address)"
		}
		return "(address)"
	})
}

// address is a host with a port, or a host after its address was looked up.
var address = regexp.MustCompile(`lookup [\w.-]+|(?:[\w.-]+|\[[0-9A-Fa-f:.%]+\]):\d{1,5}\b`)

// observe starts an observation for events outside an acquisition.
func (g *Guard) observe(ctx context.Context, req Request, keys []string) observe.Observation {
	if g.Observer() == nil {
		return observe.Observation{}
	}
	c := g.configFor(req)
	_, o := g.locker.base.observer.Start(ctx, observe.Operation{
		Rule: g.config.name, Kind: kinds[c.terms.Kind], Keys: slices.Clone(keys), Wait: g.config.terms.Wait, Unlocked: true,
	})
	return o
}

// rejected reports that a request is refused before its lock was
// asked for: no key could be made of it, or it exceeds a limit. The client's
// mistakes are the observer's to count; the server's are logged, since the client gets
// no details. A principal that is not found is most often the server's mistake, though
// the client gets a 400.
func (g *Guard) rejected(ctx context.Context, req Request, err error) *Refusal {
	if o := g.observe(ctx, req, nil); o.Rejected != nil {
		o.Rejected(err)
	}
	refusal := g.refusal(ctx, err)
	if errors.Is(err, errNothingFound) {
		g.lines.Add(ctx, slog.LevelWarn, "interlock: the rule refuses requests in which a function finds nothing: "+
			"authentication goes in front of the rule, and core.Request.Value finds what gin and echo keep by c.Set",
			g.config.name, err)
	}
	g.logRefusal(ctx, refusal, "interlock: the rule cannot make a key, or find the principal or the number, of its requests and refuses them")
	return refusal
}

// logRefusal logs each refusal that is an error of the server (a status of 500 or 503), for
// the operator: the client gets no details. wrong is the text where the guard itself, or a
// function that it calls, is wrong.
func (g *Guard) logRefusal(ctx context.Context, r *Refusal, wrong string) {
	level, text := slog.LevelWarn, ""
	switch r.Reason {
	case reason.Unavailable, reason.NotReplicated:
		text = "interlock: the lock store fails and the rule refuses requests"
	case reason.Closing:
		text = "interlock: the locker is closed and the rule refuses requests: shut the server down before Locker.Close"
	case reason.Lost, reason.MaxHold:
		text = "interlock: a lease of the rule was lost before the request was answered, and the client gets an error"
	case reason.HeldByCaller:
		text = "interlock: requests want a lock that their own caller holds while it waits for them, and are refused: " +
			"let one service lock a resource, or release the lock before the call"
	case reason.StaleToken:
		text = "interlock: requests come from outdated holders of their locks, and the rule refuses them"
	case reason.TokenMissing:
		text = "interlock: requests come without the fencing token that the rule asks for, and are refused: " +
			"let their client send it (SendFences), under a lock of the same key"
	case reason.KeyOccupied:
		level, text = slog.LevelError, "interlock: the key of a lock has a value that is no lock, and the rule refuses requests"
	case reason.Misconfigured, reason.Internal:
		level, text = slog.LevelError, wrong
	default:
		return
	}
	g.lines.Add(ctx, level, text, g.config.name, r.cause())
}

// bypassed reports that a handler runs without its lock.
func (g *Guard) bypassed(ctx context.Context, req Request, r *Refusal) {
	if o := g.observe(ctx, req, r.keys); o.Bypassed != nil {
		o.Bypassed(r.Err)
	}
	g.lines.Add(ctx, slog.LevelWarn, "interlock: the lock store is unavailable and the rule fails open: handlers run without their lock",
		g.config.name, r.cause())
}
