package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/interlock-go/interlock/interlockdebug"
	"github.com/interlock-go/interlock/internal/redistest"
)

// read asks the debug page of a process.
func (p *process) read(accept string) (string, error) {
	req, err := http.NewRequestWithContext(p.t.Context(), http.MethodGet, p.debug, nil)
	if err != nil {
		return "", err
	}
	req.Header.Set("Accept", accept)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if got := resp.Header.Get("Content-Type"); err == nil && !strings.HasPrefix(got, accept) {
		err = fmt.Errorf("a page of %s", got)
	}
	return string(body), err
}

func TestTheDebugPageShowsPaymentsUnderWay(t *testing.T) {
	server := redistest.Shared(t)
	p := startServing(t, server.Addr(), "-faults", "-work", "0", "-wait", "1m")
	defer http.DefaultClient.CloseIdleConnections()
	p.putAll()
	var under []<-chan reply
	for _, c := range p.clients {
		slow := payment{payer: "carol", key: rand.Text(), account: c.frontend(), amount: 10, behaviour: "delay=10s"}
		under = append(under, later(func() reply { return c.pay(t.Context(), slow) }))
	}
	var s interlockdebug.Snapshot
	until := func(waiters int) {
		t.Helper()
		redistest.Eventually(t, 10*time.Second, func(context.Context) error {
			text, err := p.read("application/json")
			if err != nil {
				return err
			}
			s = interlockdebug.Snapshot{} // what is left out must not be left over
			if err := json.Unmarshal([]byte(text), &s); err != nil {
				return err
			}
			if s.Held != len(frontends) || s.Waiting != waiters || s.Pending != len(frontends) {
				return errors.New("not all are under way: " + text)
			}
			waits := func(l interlockdebug.Lock) bool { return l.OldestWaitSeconds > 0 }
			if waiters > 0 && !slices.ContainsFunc(s.Locks, waits) {
				return errors.New("the waiter came while the page was read: " + text)
			}
			return nil
		})
	}
	until(0)
	waiting := later(func() reply { return p.clients[0].debit(t.Context(), frontends[0], 1) })
	until(1)
	for _, l := range s.Locks {
		account := strings.TrimPrefix(l.Key, "account/")
		if !slices.Contains(frontends, account) || !l.Held || l.Token == 0 || (account == frontends[0]) != (l.OldestWaitSeconds > 0) {
			t.Errorf("%+v", l)
		}
	}
	html, err := p.read("text/html")
	if err != nil || !strings.Contains(html, "account/"+frontends[0]) || !strings.Contains(html, "Claims pending") {
		t.Errorf("%v\n%s", err, html)
	}
	for _, done := range append(under, waiting) {
		if a := <-done; !a.done() {
			t.Errorf("%+v", a)
		}
	}
}
