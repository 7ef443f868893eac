package idempotency

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/internal/handed"
	"github.com/interlock-go/interlock/core/reason"
)

const (
	// KeyHeader is the header of the idempotency key (the IETF draft "The
	// Idempotency-Key HTTP Header Field"). In gRPC it is metadata with this name in
	// lower case.
	KeyHeader = "Idempotency-Key"
	// ReplayedHeader is set to "true" on a response that was replayed.
	ReplayedHeader = "Idempotent-Replayed"
)

// downstreamKey derives a key for another service from a record's name. It has
// the form of a UUID (version 8, RFC 9562), which every such service takes.
func downstreamKey(id string, steps []string) string {
	h := sha256.New()
	h.Write([]byte("interlock downstream key\n" + id))
	for _, s := range steps {
		var n [8]byte
		binary.BigEndian.PutUint64(n[:], uint64(len(s)))
		h.Write(n[:])
		h.Write([]byte(s))
	}
	sum := h.Sum(nil)
	sum[6] = sum[6]&0x0f | 0x80 // version
	sum[8] = sum[8]&0x3f | 0x80 // variant
	var b [36]byte
	hex.Encode(b[0:8], sum[0:4])
	hex.Encode(b[9:13], sum[4:6])
	hex.Encode(b[14:18], sum[6:8])
	hex.Encode(b[19:23], sum[8:10])
	hex.Encode(b[24:36], sum[10:16])
	b[8], b[13], b[18], b[23] = '-', '-', '-', '-'
	return string(b[:])
}

// scope finds out in which space of keys the call's is.
func (e *Engine) scope(ctx context.Context, call endpoint.Call) (string, error) {
	if s, ok := call.(endpoint.Scoper); ok {
		return s.Scope(func() (string, error) { return e.principal(ctx, call) })
	}
	principal, err := e.principal(ctx, call)
	if err != nil || !e.config.perEndpoint && e.config.profile == reason.IETFDraft { // other profiles demand it
		return principal, err
	}
	method, _, _ := call.Target()
	_, path, _ := call.Origin()
	return EndpointScope(principal, method, path), nil
}

// principal finds out whose key it is.
func (e *Engine) principal(ctx context.Context, call endpoint.Call) (string, error) {
	if e.config.global {
		return "", nil
	}
	scope, err := e.config.scope(ctx, handed.Request(call))
	if err == nil && scope == "" {
		err = endpoint.ErrNoPrincipal
	}
	return scope, err
}

// unscoped makes the refusal of a request whose principal was not found. What is
// most often a mistake of the server is logged, since the client is not told.
func (e *Engine) unscoped(ctx context.Context, err error) *core.Refusal {
	switch {
	case errors.Is(err, endpoint.ErrNoPrincipal):
		e.log(ctx, slog.LevelWarn, "interlock: idempotent requests are refused, since the Scope function finds no principal: "+
			"authentication goes in front, and core.Request.Value finds what gin and echo keep by c.Set", err)
		return e.refusal(reason.NoPrincipal, err)
	case errors.Is(err, core.ErrKey):
		return e.refusal(reason.NoPrincipal, err)
	case errors.Is(ctx.Err(), context.Canceled):
		return e.refusal(reason.Canceled, err)
	case ctx.Err() != nil:
		return e.refusal(reason.Deadline, err)
	}
	return e.refusal(reason.Internal, fmt.Errorf("interlock: the Scope function fails: %w", err))
}
