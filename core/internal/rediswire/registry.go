package rediswire

import (
	"context"
	_ "embed"
	"strconv"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/clock"
	"github.com/interlock-go/interlock/core/internal/inflight"
)

//go:embed lua/announce.lua
var announceSource string

// It is rare: its source is sent along where a server does not know it.
var announceScript = NewScript(announceSource)

var _ driver.Registry = (*Store)(nil)

// The fields of a locker's entry.
const (
	entryHost     = "host"
	entryPID      = "pid"
	entryService  = "service"
	entryVersion  = "version"
	entryStarted  = "started"
	entryProtocol = "protocol"
	entrySeen     = "seen"
)

// Announce implements [driver.Registry].
func (s *Store) Announce(ctx context.Context, a driver.Announcement) error {
	key := s.names.locker(a.ID)
	r := (&Request{}).Make(s, announceScript, key, make([]any, callArgs+14)).Keys(key).Args(
		clock.Ceil(a.TTL, time.Millisecond), entryHost, a.Host, entryPID, a.PID, entryService, a.Service, entryVersion, a.Version,
		entryStarted, strconv.FormatInt(a.Started.UnixMilli(), 10), entryProtocol, a.Protocol,
	)
	r.Asks, r.once = true, true
	r.Deadline, _ = ctx.Deadline()
	if !r.Do(ctx, r.Deadline) {
		return inflight.Pending(ctx)
	}
	if r.Err != nil {
		return Wrap(r.Err)
	}
	if r.Val != any("announced") {
		return Wrap(ErrReply)
	}
	return nil
}

// Withdraw implements [driver.Registry].
func (s *Store) Withdraw(ctx context.Context, id string) error {
	return s.Delete(ctx, s.names.locker(id))
}
