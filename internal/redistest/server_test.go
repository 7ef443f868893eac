//go:build integration

package redistest_test

import (
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/internal/redistest"
)

// gone fails the test unless nothing listens at the address any more.
func gone(tb testing.TB, addr string) {
	tb.Helper()
	if conn, err := net.DialTimeout("tcp", addr, time.Second); err == nil {
		conn.Close()
		tb.Errorf("a server still listens at %s", addr)
	}
}

func TestAServerIsGoneAfterItsTest(t *testing.T) {
	t.Parallel()
	for name, stop := range map[string]func(testing.TB, *redistest.Server){
		"running": func(testing.TB, *redistest.Server) {},
		"paused":  func(tb testing.TB, s *redistest.Server) { s.Pause(tb) },
		"stopped": func(tb testing.TB, s *redistest.Server) { s.Stop(tb); gone(tb, s.Addr()) },
	} {
		var addr, dir string
		t.Run(name, func(t *testing.T) {
			own := redistest.Start(t)
			addr, dir = own.Addr(), own.Dir()
			stop(t, own)
		})
		gone(t, addr)
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %s is still there: %v", name, dir, err)
		}
	}
}

func TestAKilledServerComesBackEmptyAtItsAddress(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	if err := rdb.Set(t.Context(), "k", "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	addr, pid := s.Addr(), s.PID()
	s.Kill()
	s.Kill() // twice does no harm
	gone(t, addr)
	s.Restart(t)
	if s.Addr() != addr || s.PID() == pid {
		t.Fatalf("restarted as %s, process %d; it was %s, process %d", s.Addr(), s.PID(), addr, pid)
	}
	if v, err := rdb.Get(t.Context(), "k").Result(); !errors.Is(err, redis.Nil) {
		t.Errorf("the key is %q, %v", v, err)
	}
}

func TestTheCommonServerIsOneAndNamesAreNot(t *testing.T) {
	t.Parallel()
	srv, name := redistest.Common(t)
	again, other := redistest.Common(t)
	if again.PID() != srv.PID() || other == name {
		t.Errorf("processes %d and %d, names %q and %q", srv.PID(), again.PID(), name, other)
	}
}
