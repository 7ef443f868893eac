//go:build long && unix

package faults

import (
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/internal/redistest"
	"github.com/interlock-go/interlock/trust/internal/faultnet"
)

func TestHalfOpenConnection(t *testing.T) {
	s := stage(t)
	srv := redistest.Start(t)
	rdb := srv.Client(t)
	var wire faultnet.Wire
	old := faultnet.NewProxy(t, srv.Addr())
	wire.Lead(old.Addr())
	l, other := s.locker(srv.Client(t, wire.Through), core.Watchdog(10*time.Second)), s.locker(rdb)
	held := s.must(l, "held")
	theirs := s.must(other, "awaited")
	got := later(func() error { return pass(l, "awaited") })
	s.waits(rdb, "awaited")
	// All connections of the process are dead and do not know it: to send, to renew
	// and to listen. New ones are good.
	wire.Lead(srv.Addr())
	old.Cut()
	begin := time.Now()
	if err := pass(l, "new"); err != nil {
		t.Errorf("Lock over dead connections: %v", err)
	}
	t.Logf("a lock over dead connections took %v", time.Since(begin))
	s.renewed(held)
	s.refused(other, "held", core.ErrHeld)
	s.release(theirs) // is announced to a dead connection
	begin = time.Now()
	s.want(got, nil)
	t.Logf("the release was heard after %v", time.Since(begin))
	s.release(held)
	s.clean(srv)
}
