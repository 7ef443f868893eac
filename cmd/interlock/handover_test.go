//go:build integration

package main

import (
	"strings"
	"testing"
	"time"

	"github.com/interlock-go/interlock/cmd/interlock/internal/show"
	"github.com/interlock-go/interlock/core"
)

// No process has such a lock, and the worker with its ticket may not come before long.
func TestALockThatIsHandedOverIsShownAndItsTicketVoided(t *testing.T) {
	s := alone(t)
	web, worker := s.process(core.Service("web", "v1")), s.process()
	for kind, opts := range map[string][]core.Option{"lock": nil, "permit": {core.Permits(2)}} {
		lease := s.lock(web, kind, opts...)
		ticket, err := lease.HandOver(t.Context(), time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		has := func(text string, parts ...string) {
			t.Helper()
			for _, part := range parts {
				if !strings.Contains(text, part) {
					t.Errorf("%q is missing in\n%s", part, text)
				}
			}
			if strings.Contains(text, ticket.Text()) {
				t.Errorf("the output has the secret:\n%s", text)
			}
		}
		has(s.want(0, "ls", kind).out, "handed over by ", text(ticket.Token()))
		has(s.want(0, "inspect", kind).out, "handed over", "kept for ", "for the process that has the ticket")
		has(s.want(0, "inspect", "-json", kind).out, `"handed_over":true`)
		has(s.want(0, "release", "-now", "-token", text(ticket.Token()), kind).out, "released "+kind, "its ticket is void")
		_, err = worker.TakeOver(t.Context(), ticket)
		wantErr(t, err, core.ErrTicketRevoked)
		_, err = worker.TakeOver(t.Context(), ticket, core.OrLock())
		wantErr(t, err, core.ErrTicketRevoked)
		if r := decode[show.Result](t, s.want(0, "wait", "-json", kind)); len(r) != 1 {
			t.Errorf("wait: %+v", r)
		}
	}
}
