package idempotency

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/internal/requests"
	"github.com/interlock-go/interlock/core/reason"
)

// Parts is what a fingerprint is made of. Two requests with one key are the same if
// all their Parts are the same. See [Fingerprint]. Of a function (package once) only
// Body, its encoded input, and Keys are set.
type Parts struct {
	// Method is the HTTP method, empty in gRPC.
	Method string
	// Host is the host that the client asked for, in gRPC the authority, with its
	// port and in lower case. It is empty for an IP address and for localhost:
	// these name a server, and a client may send a request again to another server.
	Host string
	// Path is the path of the request URI as the client sent it, before a router or
	// http.StripPrefix changed it. Escaped and plain text make no difference. Where a
	// router has changed the path, the changed path counts, too. In gRPC it is the full
	// method.
	Path string
	// Query is the query as the client sent it, empty in gRPC.
	Query string
	// Body is the body (under [EqualJSON] in its canonical form), in gRPC the message in deterministic wire format.
	Body []byte
	// Keys are the lock keys of the guard given to [Under], sorted, each key once.
	Keys []string
	// More is what a function given to [Fingerprint] adds. Empty by default.
	More []string
}

// Fingerprint changes the comparison of two requests with one key. f gets the default parts of
// the comparison, and may add to them or replace them. The parts are copies: writing to them
// changes neither the request nor its locks.
//
//	idempotency.Fingerprint(func(_ context.Context, req core.Request, p *idempotency.Parts) error {
//		p.More = append(p.More, req.Header("Api-Version")...) // a header that changes the effect
//		p.Query = ""                                         // signed anew for each try
//		p.Host = ""                                          // each server has a different name
//		return nil
//	})
//
// A client that makes its multipart form anew for each try sends another boundary
// each time: set Body to something that is made of the parts alone.
//
// An error of f refuses the request, as an error of a [core.KeyFunc] does. Records
// made without the option, or with another function, count as records of other
// requests ([reason.KeyReused]). f must be safe for concurrent use. Default:
// all fields of [Parts] as they are.
func Fingerprint(f func(ctx context.Context, req core.Request, parts *Parts) error) Option {
	return func(c *config) {
		if f == nil {
			c.fail("Fingerprint(nil): must not be nil")
			return
		}
		c.fingerprint = f
	}
}

// fingerprintOf returns the fingerprint of a request. keys is its own.
func (c *config) fingerprintOf(ctx context.Context, call endpoint.Call, keys []string, body []byte) (sum [sha256.Size]byte, err error) {
	method, path, query := call.Target()
	routed := []string{path, query}
	host, path, query := call.Origin()
	// A KeyFunc may make the keys in another order each time, as the range over a map
	// does, and twice; the locks are the same.
	slices.Sort(keys)
	if c.equalJSON || c.profile == reason.AgenticCommerce { // which demands it
		body = canonicalJSON(body)
	}
	p := Parts{Method: method, Host: selecting(host), Path: path, Query: query, Body: body, Keys: slices.Compact(keys)}
	if c.fingerprint != nil {
		routed, p.Body = nil, bytes.Clone(body)
		if err := c.fingerprint(ctx, requests.Copy(call), &p); err != nil {
			return sum, err
		}
	}
	return p.sum(call.Protocol(), routed), nil
}

// sum hashes the parts that exist. routed is the path and the query after a router that
// changes them.
func (p *Parts) sum(protocol string, routed []string) [sha256.Size]byte {
	var room [512]byte
	b := room[:0]
	body := sha256.Sum256(p.Body)
	for _, part := range [...][]string{
		{"interlock fingerprint 1", protocol, p.Method, p.Host, p.Path, p.Query, string(body[:])}, routed, p.Keys, p.More,
	} {
		b = binary.BigEndian.AppendUint64(b, uint64(len(part)))
		for _, s := range part {
			b = binary.BigEndian.AppendUint64(b, uint64(len(s)))
			b = append(b, s...)
		}
	}
	return sha256.Sum256(b)
}

// selecting returns a host as far as it can select a resource. An address selects
// a server among several that all do the same.
func selecting(host string) string {
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	name = strings.ToLower(strings.Trim(name, "[]"))
	if _, err := netip.ParseAddr(name); err == nil || name == "localhost" {
		return ""
	}
	return strings.ToLower(host)
}
