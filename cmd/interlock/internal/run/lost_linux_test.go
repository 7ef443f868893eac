package run_test

import (
	"bytes"
	"cmp"
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

// swallower writes what a proxy lets through.
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
// there, whose command notes when it begins.
func TestACommandThatIsCutOffHasEndedBeforeTheNextBegins(t *testing.T) {
	rounds, atOnce := 50, 10
	if testing.Short() {
		rounds = 10
	}
	srv := redistest.Start(t)
	gaps := make([]time.Duration, rounds)
	var work sync.WaitGroup
	turns := make(chan struct{}, atOnce)
	for round := range rounds {
		turns <- struct{}{}
		work.Go(func() {
			t.Run(strconv.Itoa(round), func(t *testing.T) { gaps[round] = cutOff(t, srv.Addr(), round) })
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

func cutOff(t *testing.T, addr string, round int) (gap time.Duration) {
	p := startProxy(t, addr)
	key, dir := fmt.Sprintf("k%d", round), t.TempDir()
	beats, began := filepath.Join(dir, "beats"), filepath.Join(dir, "began")
	program, change := asWitness(t, beats)
	command := []string{program}
	if round%2 == 1 { // one that the command itself has started
		command = []string{"sh", "-c", program + " & wait"}
	}
	// The margin of 20s, a second, is one for a busy machine too.
	holder := begin(t, p.addr, append([]string{"-ttl", "20s", key, "--"}, command...), change)
	redistest.Eventually(t, 20*time.Second, func(context.Context) error { _, err := instant(beats); return err })
	next := begin(t, addr, []string{key, "-shell", "--", "date +%s%N > " + began})
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

func TestAShortInterruptionDoesNotEndTheCommand(t *testing.T) {
	p := startProxy(t, redistest.Shared(t).Addr())
	w := begin(t, p.addr, []string{"-ttl", "18s", "-grace", "1s", "k", "-shell", "--", "echo ready; sleep 16; exit 4"})
	w.says("ready")
	p.setCut(true)
	time.Sleep(7 * time.Second) // one renewal fails
	p.setCut(false)
	w.ends(4, "")
}

func TestACommandWhoseLockWasDeletedIsEnded(t *testing.T) {
	srv := redistest.Shared(t)
	for name, c := range map[string]struct {
		change func(ctx context.Context, key string) error
		script string
		says   string
	}{
		"deleted, and the command cleans up": {
			func(ctx context.Context, key string) error { return srv.Client(t).Del(ctx, key).Err() },
			"trap 'echo cleaned; exit 3' TERM; echo ready; while :; do sleep 0.01; done", "status 3",
		},
		"taken over, and the command does not obey": {
			func(ctx context.Context, key string) error {
				rdb := srv.Client(t)
				return cmp.Or(rdb.Del(ctx, key).Err(), rdb.HSet(ctx, key, "another:1", "1").Err())
			},
			"trap '' TERM; echo ready; echo cleaned; while :; do sleep 0.01; done", "status 137",
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := begin(t, srv.Addr(), []string{"-ttl", "9s", "-grace", "4s", "k", "-shell", "--", c.script})
			w.says("ready")
			if err := c.change(t.Context(), "interlock:{k}"); err != nil {
				t.Fatal(err)
			}
			w.says("cleaned")
			w.ends(79, "was lost")
			if !strings.Contains(w.errs.String(), c.says) {
				t.Errorf("it said %q; want %q", w.errs.String(), c.says)
			}
			if err := srv.Client(t).Del(t.Context(), "interlock:{k}").Err(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// A loss that only the release finds is one all the same.
func TestACommandThatEndsBeforeTheLossIsNoticedIsToldOfIt(t *testing.T) {
	srv := redistest.Shared(t)
	w := begin(t, srv.Addr(), []string{"-ttl", "1m", "k", "-shell", "--", "echo ready; read end; exit 0"}, func(c *exec.Cmd) {
		r, end, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		c.Stdin = r
		t.Cleanup(func() { _ = r.Close() })
		go func() {
			defer func() { _ = end.Close() }()
			for n := int64(0); n == 0; n, _ = srv.Client(t).Del(t.Context(), "interlock:{k}").Result() {
				time.Sleep(time.Millisecond)
			}
		}()
	})
	w.says("ready")
	w.ends(79, "deleted")
}

// The wrapper cannot end its command when it is killed itself: the kernel does.
func TestAWrapperThatIsKilledLeavesNeitherCommandNorLock(t *testing.T) {
	srv := redistest.Shared(t)
	var next *wrapper
	pid := 0
	for range 5 {
		w := begin(t, srv.Addr(), []string{"-ttl", "3s", "k", "-shell", "--", "echo $$; exec sleep 1000"})
		var err error
		if pid, err = strconv.Atoi(w.line()); err != nil {
			t.Fatal(err)
		}
		next = begin(t, srv.Addr(), []string{"k", "--", "echo", "next"})
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
	starts := 1000
	if testing.Short() {
		starts = 100
	}
	srv := redistest.Start(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "count"), []byte("0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	path, err := tool()
	if err != nil {
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
