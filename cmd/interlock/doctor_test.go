//go:build long

package main

import (
	"strings"
	"testing"

	"github.com/interlock-go/interlock/cmd/interlock/internal/show"
	"github.com/interlock-go/interlock/internal/redistest"
)

func TestDoctorOfASafeServer(t *testing.T) {
	srv := redistest.Start(t, redistest.Args("--appendonly", "yes"))
	s := of(t, srv)
	if r := s.want(0, "doctor"); !strings.Contains(r.out, "nothing unsafe was found") {
		t.Errorf("\n%s", r.out)
	}
	if err := srv.Client(t).Do(t.Context(), "ACL", "SETUSER", "service", "on", "nopass", "~interlock:*", "+evalsha").Err(); err != nil {
		t.Fatal(err)
	}
	r := s.want(exitNo, "doctor", "-rights-of", "service")
	if !strings.Contains(r.out, "missing right of service: +hset, for locks") || strings.Contains(r.out, "+evalsha") {
		t.Errorf("\n%s", r.out)
	}
	if r := s.want(exitFailed, "doctor", "-rights-of", "unknown"); !strings.Contains(r.stderr, "unknown") {
		t.Errorf("%+v", r)
	}
}

func TestDoctorOfAServerThatHidesSomething(t *testing.T) {
	s := of(t, redistest.Start(t, redistest.Args("--rename-command", "CONFIG", "")))
	if r := s.want(exitNo, "doctor"); !strings.Contains(r.out, "noeviction") && !strings.Contains(r.out, "settings cannot be read") ||
		!strings.Contains(r.out, "ROUND TRIP") {
		t.Errorf("CONFIG has no name: %+v", r)
	}
	s = of(t, redistest.Start(t, redistest.Args("--appendonly", "yes", "--rename-command", "CONFIG", "")))
	if r := s.want(0, "doctor"); !strings.Contains(r.out, "note: ") || !strings.Contains(r.out, "not known: appendfsync") {
		t.Errorf("CONFIG has no name, and appendonly is on: %+v; want a note", r)
	}
	node := &servers{t: t, args: []string{"-addr", redistest.Cluster(t, 2, 0).Addrs()[0]}}
	if r := node.want(exitNo, "doctor"); !strings.Contains(r.out, "give -cluster") {
		t.Errorf("one node of a Cluster: %+v", r)
	}
	for _, key := range []string{"a", "b", "c", "d"} { // some are another node's
		if r := node.run("inspect", key); r.code != exitNo && !strings.Contains(r.stderr, "-cluster") {
			t.Errorf("a key of another node: %+v", r)
		}
	}
}

// reader makes a user that may only read, and has the tool log in as that user.
func (s *servers) reader(srv *redistest.Server) {
	s.t.Helper()
	rule := []any{"ACL", "SETUSER", "reader", "on", ">p-w", "%R~interlock:*", "+@connection"}
	for _, command := range strings.Fields("scan hlen pttl hmget hscan get hgetall time") {
		rule = append(rule, "+"+command)
	}
	if err := srv.Client(s.t).Do(s.t.Context(), rule...).Err(); err != nil {
		s.t.Fatal(err)
	}
	s.env = []string{"INTERLOCK_USER=reader", "INTERLOCK_PASSWORD=p-w"}
}

func TestAUserThatMayOnlyReadReads(t *testing.T) {
	srv := redistest.Start(t)
	s := of(t, srv)
	lease := s.lock(s.process(), "k")
	s.reader(srv)
	if j := decode[show.Lock](t, s.want(0, "ls", "-json")); len(j) != 1 || j[0].Key != "k" {
		t.Errorf("%+v", j)
	}
	s.want(0, "inspect", "k")
	s.want(0, "lockers")
	s.want(exitHeld, "wait", "k", "-timeout", "50ms")
	r := s.want(exitFailed, "release", "k", "-token", text(lease.Token()))
	if !strings.Contains(r.stderr, "the Redis user lacks a right") || !strings.Contains(r.stderr, "+evalsha") {
		t.Errorf("%+v", r)
	}
	if r := s.want(exitNo, "doctor"); !strings.Contains(r.out, "missing right of reader: +evalsha") {
		t.Errorf("\n%s%s", r.out, r.stderr)
	}
	wantErr(t, lease.Check(t.Context()), nil)

	// A password in the URL does the same, and is shown by nothing.
	s.args, s.env = nil, []string{"INTERLOCK_URL=redis://reader:p%2Dw@" + srv.Addr()}
	s.want(0, "inspect", "k")
	s.env = []string{"INTERLOCK_URL=redis://reader:secret@" + srv.Addr()}
	if r := s.want(exitFailed, "inspect", "k"); strings.Contains(r.stderr, "secret") || !strings.Contains(r.stderr, "set INTERLOCK_PASSWORD") {
		t.Errorf("%+v", r)
	}
	s.env = []string{"INTERLOCK_URL=redis://reader:sec%ret@" + srv.Addr()}
	if r := s.want(exitUsage, "inspect", "k"); strings.Contains(r.stderr, "sec%ret") {
		t.Errorf("%+v", r)
	}
	if r := s.want(0, "-h"); strings.Contains(r.out, "sec%ret") {
		t.Errorf("the help shows the URL of the environment:\n%s", r.out)
	}
}
