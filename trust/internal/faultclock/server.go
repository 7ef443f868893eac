package faultclock

import (
	_ "embed"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/interlock-go/interlock/internal/redistest"
)

//go:embed shim.c.txt
var shim string

// Server is a server with its own wall clock.
type Server struct {
	*redistest.Server
	clock, library string // the file that the shim has mapped, and the shim
}

// environment is the environment that the servers inherit from this process, one at a time.
var environment sync.Mutex

// Start starts a server with a clock that shows the right time. Since a server
// takes its environment from this process, call it before t.Parallel: another
// process that starts meanwhile would have the shim too, which does no harm to it.
func Start(tb testing.TB) *Server {
	tb.Helper()
	dir := tb.TempDir()
	source, library := filepath.Join(dir, "shim.c"), filepath.Join(dir, "shim.so")
	if err := os.WriteFile(source, []byte(shim), 0o600); err != nil {
		tb.Fatal(err)
	}
	compiler := os.Getenv("CC")
	if compiler == "" {
		compiler = "cc"
	}
	if said, err := exec.Command(compiler, "-shared", "-fPIC", "-O1", "-o", library, source).CombinedOutput(); err != nil {
		tb.Fatalf("faultclock: %s: %v\n%s", compiler, err, said)
	}
	s := &Server{clock: filepath.Join(dir, "clock"), library: library}
	s.Step(tb, 0)
	s.shimmed(tb, func() { s.Server = redistest.Start(tb) })
	return s
}

// Restart starts a server again that was killed or stopped, as a reboot does: the server has
// lost its data, and its clock shows the time that [Server.Step] has set.
func (s *Server) Restart(tb testing.TB) {
	tb.Helper()
	s.shimmed(tb, func() { s.Server.Restart(tb) })
}

// shimmed calls a function that starts a server, with the shim in the environment.
func (s *Server) shimmed(tb testing.TB, start func()) {
	tb.Helper()
	environment.Lock()
	defer environment.Unlock()
	for name, value := range map[string]string{"LD_PRELOAD": s.library, "INTERLOCK_CLOCK": s.clock} {
		if err := os.Setenv(name, value); err != nil { //nolint:usetesting // t.Setenv forbids t.Parallel for good; this has ended on return
			tb.Fatal(err)
		}
		defer os.Unsetenv(name) //nolint:errcheck // it was set
	}
	start()
}

// Step sets the server's clock this far ahead of the right time, at once; negative
// is behind. The unit is the second.
func (s *Server) Step(tb testing.TB, d time.Duration) {
	tb.Helper()
	// Written in place: the shim has the file mapped.
	file, err := os.OpenFile(s.clock, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		tb.Fatal(err)
	}
	defer file.Close() //nolint:errcheck // the write has been checked
	var b [8]byte
	binary.NativeEndian.PutUint64(b[:], uint64(int64(d/time.Second)))
	if _, err := file.WriteAt(b[:], 0); err != nil {
		tb.Fatal(err)
	}
}
