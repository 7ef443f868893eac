package redistest

import (
	"errors"
	"strings"
	"testing"
)

// The other server answers at the address, and a start that only looks for an
// answer would take it for its own.
func TestServerOnATakenPortIsNotMistakenForOurs(t *testing.T) {
	other := Start(t)
	s := &Server{cfg: newConfig(t.TempDir(), nil), port: other.port, dir: t.TempDir()}
	if err := s.run(t.Context()); !errors.Is(err, errPortTaken) {
		t.Fatalf("started on the port of another server: %v, want %v", err, errPortTaken)
	}
}

func TestServerThatRefusesItsSettingsSaysWhy(t *testing.T) {
	_, err := start(t.Context(), newConfig(t.TempDir(), []Option{Args("--no-such-setting", "1")}))
	if err == nil || errors.Is(err, errPortTaken) {
		t.Fatalf("start with an unknown setting: %v", err)
	}
	if msg := err.Error(); !strings.Contains(msg, "no-such-setting") {
		t.Errorf("the error does not carry the server's own words: %s", msg)
	}
}
