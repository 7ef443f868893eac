//go:build long

package main

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// page starts the page, and returns its address and the process.
func (s *servers) page(args ...string) (address string, cmd *exec.Cmd) {
	s.t.Helper()
	cmd = s.command(s.t.Context(), append([]string{"ui", "-json"}, args...)...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
	var at struct{ Address string }
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &at)
	}
	if err != nil {
		s.t.Fatalf("%q: %v", line, err)
	}
	return at.Address, cmd
}

// stopAtOnce has a client of HTTP not follow redirects.
func stopAtOnce(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// visit makes a request, and returns the status and the page.
func visit(t *testing.T, client *http.Client, r *http.Request) (int, string) {
	t.Helper()
	resp, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(page)
}

func TestThePageShowsAndReleasesLocks(t *testing.T) {
	s := alone(t)
	lease := s.lock(s.process(), "account/42")
	address, cmd := s.page()
	client := &http.Client{CheckRedirect: stopAtOnce, Timeout: time.Minute}
	defer client.CloseIdleConnections()
	get := func(target string) (int, string) {
		r, err := http.NewRequestWithContext(t.Context(), "GET", address+target, nil)
		if err != nil {
			t.Fatal(err)
		}
		return visit(t, client, r)
	}
	if code, page := get(""); code != http.StatusOK || !strings.Contains(page, ">account/42</a>") {
		t.Errorf("status %d:\n%s", code, page)
	}
	form := url.Values{"key": {"account/42"}, "token": {strconv.FormatInt(lease.Token(), 10)}}.Encode()
	r, err := http.NewRequestWithContext(t.Context(), "POST", address+"release?"+form, strings.NewReader("confirm=account%2F42"))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	if code, page := visit(t, client, r); code != http.StatusSeeOther {
		t.Errorf("status %d:\n%s", code, page)
	}
	if code, page := get("lock?key=account/42"); code != http.StatusOK || !strings.Contains(page, "No process holds this lock.") {
		t.Errorf("status %d:\n%s", code, page)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("after SIGTERM: %v", err)
	}
}
