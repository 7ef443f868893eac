//go:build long && unix

package examples

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/interlock-go/interlock/trust/internal/pgtest"
)

func TestMain(m *testing.M) {
	// toxiproxy's own, where a connection broke with bytes on their way.
	pgtest.Main(m,
		goleak.IgnoreAnyFunction("github.com/Shopify/toxiproxy/v2/toxics.(*ToxicStub).Run"),
		goleak.IgnoreAnyFunction("github.com/Shopify/toxiproxy/v2.(*ToxicLink).read"),
		goleak.IgnoreAnyFunction("github.com/Shopify/toxiproxy/v2.(*ToxicLink).write"),
	)
}

// patience bounds every wait. Nothing takes as long that works.
const patience = 60 * time.Second

// build builds a program of a module.
func build(t *testing.T, module, program string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "program")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", path, program)
	cmd.Dir = filepath.FromSlash(module)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return path
}

// process is a service that runs.
type process struct {
	*testing.T
	url    string // of payments
	client *http.Client
	cmd    *exec.Cmd
	over   func() error // waits for its end
}

// start runs the program, which is killed at the end of the test.
func start(t *testing.T, path, dsn string, args ...string) *process {
	t.Helper()
	p := &process{T: t, client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}}
	p.cmd = exec.Command(path, append([]string{"-addr", "127.0.0.1:0"}, args...)...)
	p.cmd.Env = append(os.Environ(), "DATABASE_URL="+dsn)
	p.cmd.Stderr = os.Stderr
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p.over = sync.OnceValue(p.cmd.Wait)
	t.Cleanup(p.kill)
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("the service has said %q, %v", line, err)
	}
	for word := range strings.FieldsSeq(line) {
		if strings.HasPrefix(word, "http://") {
			p.url = word
		}
	}
	return p
}

// kill ends the process at once, as a crash does.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may be gone
	_ = p.over()
}

// stop asks the process to end, as a platform does, and waits for it.
func (p *process) stop() {
	p.Helper()
	if err := errors.Join(p.cmd.Process.Signal(syscall.SIGTERM), p.over()); err != nil {
		p.Errorf("the service ended with %v", err)
	}
}

// answer is the answer to a client.
type answer struct {
	status   int
	body     string
	replayed bool
	err      error // no answer at all
}

// post sends a payment of alice. Without a key it has none.
func (p *process) post(key, order string) answer {
	r, err := http.NewRequestWithContext(context.Background(), http.MethodPost, p.url, strings.NewReader(order))
	if err != nil {
		return answer{err: err}
	}
	r.SetBasicAuth("alice", "secret")
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	res, err := p.client.Do(r)
	if err != nil {
		return answer{err: err}
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	return answer{res.StatusCode, strings.TrimSpace(string(body)), res.Header.Get("Idempotent-Replayed") == "true", err}
}

// pay sends a payment and holds the answer against a status and a part of its body.
func (p *process) pay(key, order string, status int, part string, replayed bool) answer {
	p.Helper()
	a := p.post(key, order)
	if a.err != nil || a.status != status || !strings.Contains(a.body, part) || a.replayed != replayed {
		p.Errorf("%s: %d %q, replayed: %v, %v; want %d with %q, replayed: %v", order, a.status, a.body, a.replayed, a.err, status, part, replayed)
	}
	return a
}

// retry sends a payment until it is no longer in flight elsewhere.
func (p *process) retry(key, order string) (a answer) {
	for end := time.Now().Add(patience); time.Now().Before(end); {
		if a = p.post(key, order); a.status != http.StatusConflict || !strings.Contains(a.body, "idempotency-in-flight") {
			break
		}
	}
	return a
}

// refuses waits until the process takes no more connections.
func (p *process) refuses() {
	p.Helper()
	address := strings.TrimSuffix(strings.TrimPrefix(p.url, "http://"), "/payments")
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		conn, err := net.Dial("tcp", address)
		if errors.Is(err, syscall.ECONNREFUSED) {
			return
		}
		if err == nil {
			_ = conn.Close()
		}
	}
	p.Error("never: the process takes no more connections")
}
