package redistest

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
)

// serverEnv names a server program to use instead of the one on PATH.
const serverEnv = "INTERLOCK_REDIS_SERVER"

// program is the server binary.
type program struct {
	path  string
	major int // of its version: 7 for Redis 7.2
}

// findProgram looks the server up once per test binary.
var findProgram = sync.OnceValues(func() (program, error) {
	path, err := lookPath()
	if err != nil {
		return program{}, err
	}
	// "Redis server v=7.0.15 sha=..." and "Valkey server v=8.0.1 sha=...".
	out, err := exec.Command(path, "--version").Output()
	if err != nil {
		return program{}, fmt.Errorf("%s --version: %w", path, err)
	}
	_, rest, _ := strings.Cut(string(out), "v=")
	major, _, _ := strings.Cut(rest, ".")
	n, err := strconv.Atoi(major)
	if err != nil {
		return program{}, fmt.Errorf("%s is no Redis server: --version says %q", path, out)
	}
	return program{path, n}, nil
})

func lookPath() (string, error) {
	if path := os.Getenv(serverEnv); path != "" {
		return path, nil
	}
	for _, name := range []string{"redis-server", "valkey-server"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", errNoServer
}
