//go:build long && unix

package observability

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/interlock-go/interlock/trust/internal/pgtest"
)

// patience bounds every wait. Nothing that works takes as long.
const patience = 90 * time.Second

// child is a process that the test has started.
type child struct {
	cmd  *exec.Cmd
	log  string
	done chan struct{} // closed when it has ended
}

// spawn starts a program with its output in a file. It is killed at the end of the test,
// by its id, and on Linux when the test binary dies.
func spawn(t *testing.T, env []string, path string, args ...string) *child {
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = log.Close() }() // the child has its own
	c := &child{cmd: exec.Command(path, args...), log: log.Name(), done: make(chan struct{})}
	c.cmd.Env = append(os.Environ(), env...)
	c.cmd.Stdout, c.cmd.Stderr = log, log
	c.cmd.SysProcAttr = pgtest.Attributes(nil)
	started := make(chan error, 1)
	go func() {
		// Linux tells a child of the end of the thread that forked, so this one waits.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(c.done)
		err := c.cmd.Start()
		started <- err
		if err == nil {
			_ = c.cmd.Wait() // it is killed
		}
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.cmd.Process.Kill() // it may have ended
		<-c.done
		if t.Failed() {
			t.Logf("%s said:\n%s", filepath.Base(path), c.tail(t))
		}
	})
	return c
}

// tail returns the end of what the process has written.
func (c *child) tail(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(c.log)
	if err != nil {
		t.Error(err)
	}
	return string(text[max(0, len(text)-4000):])
}

// address waits for a line "listening NAME host:port" of the process.
func (c *child) address(t *testing.T, name string) (address string) {
	t.Helper()
	eventually(t, "a line of "+name, func() error {
		text, err := os.ReadFile(c.log)
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(text)) {
			if n, _ := fmt.Sscanf(line, "listening "+name+" %s\n", &address); n == 1 && strings.HasSuffix(line, "\n") {
				return nil
			}
		}
		select {
		case <-c.done:
			t.Fatalf("it ended:\n%s", c.tail(t))
		default:
		}
		return errors.New("not yet")
	})
	return address
}

// eventually tries until it succeeds.
func eventually(t *testing.T, what string, try func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	for {
		err := try()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: %v", what, err)
		case <-again.C:
		}
	}
}

// prom is a Prometheus of the test's own.
type prom struct{ base string }

const promConfig = `
global:
  scrape_interval: 2s
  scrape_timeout: 2s
  evaluation_interval: 1s
rule_files: [%q]
scrape_configs:
  - job_name: payments
    static_configs: [{targets: [%s]}]
  - job_name: rare
    static_configs: [{targets: [%s]}]
`

// startPrometheus starts one that scrapes the addresses and has the rules. It keeps what
// it scrapes in a directory of the test, for an hour at most.
func startPrometheus(t *testing.T, payments []string, rare string) prom {
	t.Helper()
	path := program(t, "prometheus")
	ruleFile, err := filepath.Abs(rulesFile)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	config := filepath.Join(dir, "prometheus.yaml")
	text := fmt.Sprintf(promConfig, ruleFile, strings.Join(payments, ", "), rare)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	// Another process may take the free port before Prometheus does: then it ends, and the
	// next try has another port.
	for range 5 {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		address := listener.Addr().String()
		if err := listener.Close(); err != nil {
			t.Fatal(err)
		}
		c := spawn(t, []string{"GOMEMLIMIT=256MiB"}, path, "--config.file="+config, "--web.listen-address="+address,
			"--storage.tsdb.path="+filepath.Join(dir, "data"), "--storage.tsdb.retention.time=1h", "--log.level=warn")
		p := prom{"http://" + address}
		ended := false
		eventually(t, "Prometheus", func() error {
			select {
			case <-c.done:
				ended = true
				return nil
			default:
			}
			_, err := get(t, p.base+"/-/ready")
			return err
		})
		if !ended {
			return p
		}
		if !strings.Contains(c.tail(t), "address already in use") {
			t.Fatalf("Prometheus ended:\n%s", c.tail(t))
		}
	}
	t.Fatal("no free port in five tries")
	return prom{}
}

var httpClient = &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

// get returns the body of an answer of 200.
func get(t *testing.T, address string) ([]byte, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, http.NoBody)
	if err != nil {
		return nil, err
	}
	resp, err := httpClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, body)
	}
	return body, err
}

// api asks the API of Prometheus.
func (p prom) api(t *testing.T, path string, values url.Values, into any) error {
	t.Helper()
	body, err := get(t, p.base+"/api/v1/"+path+"?"+values.Encode())
	if err != nil {
		return err
	}
	return json.Unmarshal(body, &struct{ Data any }{into})
}

// has reports whether a query has a number as its result now, or had one since the test
// began, a look each half second.
func (p prom) has(t *testing.T, query string, since time.Time) error {
	t.Helper()
	var data struct {
		Result []struct{ Values [][2]any }
	}
	seconds := func(at time.Time) string { return strconv.FormatFloat(float64(at.UnixMilli())/1000, 'f', 3, 64) }
	err := p.api(t, "query_range", url.Values{
		"query": {query}, "start": {seconds(since)}, "end": {seconds(time.Now())}, "step": {"0.5"},
	}, &data)
	if err != nil {
		return err
	}
	for _, series := range data.Result {
		for _, sample := range series.Values {
			text, _ := sample[1].(string)
			if v, err := strconv.ParseFloat(text, 64); err == nil && !math.IsNaN(v) && !math.IsInf(v, 0) {
				return nil
			}
		}
	}
	return fmt.Errorf("no data for %s", query)
}
