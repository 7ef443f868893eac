//go:build long

package pgtest_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/interlock-go/interlock/internal/redistest"
	"github.com/interlock-go/interlock/trust/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const childEnv = "PGTEST_CHILD"

// TestServerDiesWithAKilledTestBinary runs the child below in a process of its
// own and kills that as a timeout in CI would: no cleanup runs.
func TestServerDiesWithAKilledTestBinary(t *testing.T) {
	cmd := exec.Command(os.Args[0], "-test.run=^TestChildThatWaits$")
	files, err := os.MkdirTemp("", "killed-") //nolint:usetesting // the server could not look into a TempDir of the test
	if err == nil {
		err = os.Chmod(files, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(files) })
	cmd.Env = append(os.Environ(), childEnv+"=1", "TMPDIR="+files)
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
	var dir string
	if _, err := fmt.Fscanf(stdout, "\nserves %s\n", &dir); err != nil {
		t.Errorf("the child started no server: %v", err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, stdout)
	_ = cmd.Wait() // "signal: killed"
	db, err := sql.Open("pgx", "host="+dir+" user=postgres dbname=postgres sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	redistest.Eventually(t, 20*time.Second, func(ctx context.Context) error {
		if err := db.PingContext(ctx); err == nil || !strings.Contains(err.Error(), "connect") {
			return fmt.Errorf("the server outlived the test binary: %w", errors.Join(err))
		}
		return nil
	})
}

func TestChildThatWaits(t *testing.T) {
	if os.Getenv(childEnv) == "" {
		return // only of use to the test above
	}
	var dirs string
	if err := pgtest.Open(t).QueryRowContext(t.Context(), "SHOW unix_socket_directories").Scan(&dirs); err != nil {
		t.Fatal(err)
	}
	fmt.Printf("\nserves %s\n", dirs)
	_, _ = os.Stdin.Read(make([]byte, 1)) // until killed
}
