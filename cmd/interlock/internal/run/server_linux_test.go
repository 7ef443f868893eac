//go:build long

package run_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/interlock-go/interlock/internal/redistest"
)

// proxy stands before a server. While it is cut, it swallows all bytes, in both
// directions, as a firewall does that forgot the connections.
type proxy struct {
	addr string
	mu   sync.Mutex
	cut  bool
}

func startProxy(t *testing.T, upstream string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{addr: l.Addr().String()}
	var work sync.WaitGroup
	work.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", upstream)
			if err != nil {
				_ = client.Close()
				continue
			}
			for _, way := range [][2]net.Conn{{client, server}, {server, client}} {
				work.Go(func() {
					_, _ = io.Copy(swallower{p, way[1]}, way[0]) // until one side ends
					_ = way[0].Close()
					_ = way[1].Close()
				})
			}
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		work.Wait()
	})
	return p
}

// swallower writes the data that a proxy lets through.
type swallower struct {
	proxy *proxy
	to    io.Writer
}

func (s swallower) Write(b []byte) (int, error) {
	s.proxy.mu.Lock()
	cut := s.proxy.cut
	s.proxy.mu.Unlock()
	if cut {
		return len(b), nil
	}
	return s.to.Write(b)
}

func (p *proxy) setCut(cut bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = cut
}

// tool builds the tool, and returns its path.
func tool(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "interlock")
	out, err := exec.Command("go", "build", "-o", path, "github.com/interlock-go/interlock/cmd/interlock").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return path
}

// onServer starts the tool with its connection to a server.
func onServer(t *testing.T, path, addr string, args []string, change ...func(*exec.Cmd)) *wrapper {
	t.Helper()
	cmd := exec.Command(path, append([]string{"-addr", addr, "run"}, args...)...)
	cmd.Env = os.Environ()
	for _, f := range change {
		f(cmd)
	}
	return start(t, cmd)
}

// asWitness makes this program the command.
func asWitness(t *testing.T, file string) (program string, change func(*exec.Cmd)) {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return program, func(c *exec.Cmd) { c.Env = append(os.Environ(), witnessEnv+"="+file) }
}

// instant reads a time that was noted in a file.
func instant(file string) (time.Time, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return time.Time{}, err
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	return time.Unix(0, n), err
}

// In each round the holder's command does not obey SIGTERM, and notes the time until
// it dies. Then its wrapper is cut off from the server, while another wrapper waits
// there. The command of that wrapper notes when it begins.
func TestACommandThatIsCutOffHasEndedBeforeTheNextBegins(t *testing.T) {
	const rounds, atOnce = 50, 10
	srv, path := redistest.Start(t), tool(t)
	gaps := make([]time.Duration, rounds)
	var work sync.WaitGroup
	turns := make(chan struct{}, atOnce)
	for round := range rounds {
		turns <- struct{}{}
		work.Go(func() {
			t.Run(strconv.Itoa(round), func(t *testing.T) { gaps[round] = cutOff(t, path, srv.Addr(), round) })
			<-turns
		})
	}
	work.Wait()
	slices.Sort(gaps)
	t.Logf("from the end of a command that was cut off to the beginning of the next: at least %v, median %v, of %d", gaps[0], gaps[rounds/2], rounds)
	if gaps[0] <= 0 {
		t.Errorf("a command began %v before the one before it had ended", -gaps[0])
	}
}

func cutOff(t *testing.T, path, addr string, round int) (gap time.Duration) {
	p := startProxy(t, addr)
	key, dir := fmt.Sprintf("k%d", round), t.TempDir()
	beats, began := filepath.Join(dir, "beats"), filepath.Join(dir, "began")
	program, change := asWitness(t, beats)
	command := []string{program}
	if round%2 == 1 { // a process that the command itself has started
		command = []string{"sh", "-c", program + " & wait"}
	}
	// The margin of 20s, a second, is one for a busy machine too.
	holder := onServer(t, path, p.addr, append([]string{"-ttl", "20s", key, "--"}, command...), change)
	redistest.Eventually(t, 20*time.Second, func(context.Context) error { _, err := instant(beats); return err })
	next := onServer(t, path, addr, []string{key, "-shell", "--", "date +%s%N > " + began})
	time.Sleep(time.Duration(round%10) * 680 * time.Millisecond) // renewals are at another point each time
	p.setCut(true)
	holder.ends(79, "could not be renewed in time")
	next.ends(0, "")
	last, err := instant(beats)
	if err != nil {
		t.Fatal(err)
	}
	first, err := instant(began)
	if err != nil {
		t.Fatal(err)
	}
	return first.Sub(last)
}

// The wrapper cannot end its command when it is killed itself: the kernel does.
func TestAWrapperThatIsKilledLeavesNeitherCommandNorLock(t *testing.T) {
	srv, path := redistest.Start(t), tool(t)
	var next *wrapper
	pid := 0
	for range 5 {
		w := onServer(t, path, srv.Addr(), []string{"-ttl", "3s", "k", "-shell", "--", "echo $$; exec sleep 1000"})
		var err error
		if pid, err = strconv.Atoi(w.line()); err != nil {
			t.Fatal(err)
		}
		next = onServer(t, path, srv.Addr(), []string{"k", "--", "echo", "next"})
		_ = w.cmd.Process.Signal(syscall.SIGKILL) // it may have ended
		if w.status() != 79 {
			break
		}
		// A busy machine let its lease end before.
	}
	redistest.Eventually(t, 10*time.Second, func(context.Context) error {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil || bytes.Contains(stat, []byte(") Z ")) {
			return nil //nolint:nilerr // it has gone
		}
		return fmt.Errorf("the command lives: %s", stat)
	})
	next.says("next")
	next.ends(0, "")
}

// section fails if another one is under way, and counts.
const section = `set -C; : > busy || exit 9; read n < count; set +C; echo $((n+1)) > count; rm busy`

func TestTwoHostsNeverRunACommandAtOnce(t *testing.T) {
	const starts = 1000
	srv, path := redistest.Start(t), tool(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "count"), []byte("0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var hosts sync.WaitGroup
	for range 2 {
		hosts.Go(func() {
			for range starts / 2 {
				cmd := exec.Command(path, "-addr", srv.Addr(), "run", "cron", "--", "sh", "-c", section)
				cmd.Dir = dir
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Errorf("%v: %s", err, out)
					return
				}
			}
		})
	}
	hosts.Wait()
	text, err := os.ReadFile(filepath.Join(dir, "count"))
	if got := strings.TrimSpace(string(text)); err != nil || got != strconv.Itoa(starts) {
		t.Errorf("%s were counted, %v; want %d", got, err, starts)
	}
}
