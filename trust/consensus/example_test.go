//go:build long && linux

package consensus_test

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Two processes of examples/etcd serve one bank, also while the leader is killed.
func TestTheExampleOnEtcdServesOneBank(t *testing.T) {
	program := filepath.Join(t.TempDir(), "etcd")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, ".")
	build.Dir = "../../examples/etcd"
	if said, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	c := newCluster(t)
	var services []string
	for _, port := range freePorts(t, 2) {
		addr := fmt.Sprint("127.0.0.1:", port)
		cmd := exec.Command(program, "-addr", addr, "-etcd", strings.Join(c.addrs(), ","), "-limit", limit.String())
		log, err := cmd.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		ended, err := launch(cmd)
		if err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(log)
		if !lines.Scan() || !strings.HasSuffix(lines.Text(), "what is unsafe about this etcd: []") {
			t.Errorf("a service begins with %q, %v", lines.Text(), lines.Err())
		}
		go func() { _, _ = io.Copy(io.Discard, log) }()
		t.Cleanup(func() {
			if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Errorf("a service has ended before: %v", err)
			}
			if <-ended; !cmd.ProcessState.Success() {
				t.Errorf("a service ended with %v", cmd.ProcessState)
			}
		})
		services = append(services, addr)
	}
	const debits = 20
	var all sync.WaitGroup
	for i := range debits {
		all.Go(func() {
			if status, body := debit(t, services[i%2], "42"); status != http.StatusOK {
				t.Errorf("a debit: %d %s", status, body)
			}
		})
	}
	all.Wait()
	leader := c.leader()
	leader.kill()
	// A debit that fails may have been written: the service asks etcd only once.
	status, body, failed := 0, "", -1
	for end := time.Now().Add(limit); status != http.StatusOK && time.Now().Before(end); pause(100 * time.Millisecond) {
		status, body = debit(t, services[0], "042")
		failed++
	}
	balance, err := strconv.Atoi(body)
	if err != nil || -balance <= debits || -balance > debits+1+failed {
		t.Errorf("after %d debits, %d that failed, and one more the answer is %d %s", debits, failed, status, body)
	}
	if status, body := debit(t, services[1], "four"); status != http.StatusBadRequest {
		t.Errorf("no account: %d %s", status, body)
	}
}

// debit asks a service for a debit, and waits until the service listens.
func debit(t *testing.T, addr, id string) (status int, body string) {
	t.Helper()
	for end := time.Now().Add(limit); ; pause(10 * time.Millisecond) {
		res, err := http.Post("http://"+addr+"/accounts/"+id+"/debit", "", http.NoBody) //nolint:noctx // the service has a limit
		switch {
		case err == nil:
			defer res.Body.Close()
			text, err := io.ReadAll(res.Body)
			if err != nil {
				t.Error(err)
			}
			return res.StatusCode, string(text)
		case time.Now().After(end):
			t.Error(err)
			return 0, ""
		}
	}
}
