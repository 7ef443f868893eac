//go:build integration

package redistest

import (
	"errors"
	"net"
	"strings"
	"testing"
)

// The other server answers at the address, and a start that only looks for an
// answer would take it for its own.
func TestServerOnATakenPortIsNotMistakenForOurs(t *testing.T) {
	t.Parallel()
	other := Start(t)
	s := &Server{cfg: newConfig(t.TempDir(), nil), port: other.port, dir: t.TempDir()}
	if err := s.run(t.Context()); !errors.Is(err, errPortTaken) {
		t.Fatalf("started on the port of another server: %v, want %v", err, errPortTaken)
	}
}

func TestAServerThatIsDownKeepsItsPort(t *testing.T) {
	t.Parallel()
	s := Start(t)
	s.Kill()
	if claim, err := net.ListenPacket("udp", s.Addr()); err == nil {
		_ = claim.Close()
		t.Fatalf("another server could claim %s", s.Addr())
	}
	if s.remove(); s.claims != nil {
		t.Error("removed, and the port is still claimed")
	}
}

func TestServerThatRefusesItsSettingsSaysWhy(t *testing.T) {
	t.Parallel()
	_, err := start(t.Context(), newConfig(t.TempDir(), []Option{Args("--no-such-setting", "1")}))
	if err == nil || errors.Is(err, errPortTaken) {
		t.Fatalf("start with an unknown setting: %v", err)
	}
	if msg := err.Error(); !strings.Contains(msg, "no-such-setting") {
		t.Errorf("the error does not carry the server's own words: %s", msg)
	}
}
