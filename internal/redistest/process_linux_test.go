//go:build integration

package redistest_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/interlock-go/interlock/internal/redistest"
)

const childEnv = "REDISTEST_CHILD"

// TestServerDiesWithAKilledTestBinary runs itself in a process of its own, which waits,
// and kills that as a timeout in CI would: no cleanup runs.
func TestServerDiesWithAKilledTestBinary(t *testing.T) {
	if os.Getenv(childEnv) != "" {
		fmt.Printf("\nlistening at %s\n", redistest.Start(t).Addr())
		_, _ = os.Stdin.Read(make([]byte, 1)) // until killed
		return
	}
	t.Parallel()
	cmd := exec.Command(os.Args[0], "-test.run=^TestServerDiesWithAKilledTestBinary$")
	cmd.Env = append(os.Environ(), childEnv+"=1")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var addr string
	for lines := bufio.NewScanner(stdout); addr == "" && lines.Scan(); {
		addr, _ = strings.CutPrefix(lines.Text(), "listening at ")
	}
	if addr == "" {
		t.Fatal("the child started no server")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // "signal: killed"
	redistest.Eventually(t, time.Minute, func(context.Context) error {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			conn.Close()
			return errors.New("the server outlived the test binary")
		}
		return nil
	})
}
