package zkstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/go-zookeeper/zk"

	"github.com/interlock-go/interlock/core/casstore"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/observe"
)

func TestNewAndConnectRefuseWhatCannotWork(t *testing.T) {
	if _, err := New(nil); !errors.Is(err, driver.ErrConfig) {
		t.Errorf("New: %v; want ErrConfig", err)
	}
	if _, err := Connect(nil, nil); !errors.Is(err, driver.ErrConfig) {
		t.Errorf("Connect: %v; want ErrConfig", err)
	}
}

func TestErrorsSayWhetherATransactionMayBeExecuted(t *testing.T) {
	for err, want := range map[error]error{
		zk.ErrNoServer:                    driver.ErrNotReady,
		errors.New("unknown error: -127"): driver.ErrNotReady, // THROTTLEDOP
		zk.ErrNoAuth:                      casstore.ErrRefused,
		zk.ErrInvalidACL:                  casstore.ErrRefused,
		zk.ErrAuthFailed:                  casstore.ErrRefused,
		zk.ErrInvalidPath:                 casstore.ErrRefused,
		zk.ErrBadArguments:                casstore.ErrRefused,
		zk.ErrNoChildrenForEphemerals:     casstore.ErrRefused,
		errors.New("unknown error: -125"): casstore.ErrRefused, // QUOTAEXCEEDED
		zk.ErrConnectionClosed:            nil,
		zk.ErrSessionExpired:              nil,
		zk.ErrSessionMoved:                nil,
		zk.ErrClosing:                     nil,
		zk.ErrShortBuffer:                 nil, // also of an answer that the client cannot read
		zk.ErrAPIError:                    nil,
		errors.New("unknown error: -1"):   nil,
		context.DeadlineExceeded:          nil,
	} {
		got := explain(err)
		if got == nil || !errors.Is(got, err) {
			t.Errorf("%v is explained as %v", err, got)
		}
		for _, kind := range []error{driver.ErrNotReady, casstore.ErrRefused} {
			if errors.Is(got, kind) != errors.Is(want, kind) {
				t.Errorf("%v: %v; want %v", err, got, want)
			}
		}
	}
	if explain(nil) != nil {
		t.Error("no error is explained")
	}
}

// Logs have the root cause of an error: that a request was refused, or that its time ended,
// tells an operator nothing.
func TestTheRootCauseSaysWhy(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	conn := &Conn{Conn: &zk.Conn{}} // without a session
	for want, err := range map[string]error{
		"fencing tokens":            errFar,
		"no session with ZooKeeper": (&server{conn: conn}).ready(ctx),
	} {
		if root := observe.RootCause(err); !strings.Contains(root.Error(), want) {
			t.Errorf("the root cause of %v is %v", err, root)
		}
	}
}

// live and dead are nodes that are entries, and other nodes.
func live(number int64, version int32, value string) node {
	return node{there: true, live: true, number: number, version: version, value: value}
}

func dead(number int64, version int32) node {
	return node{there: true, number: number, version: version}
}

func TestChangesAreReportedByTransaction(t *testing.T) {
	for _, part := range []struct {
		name      string
		last, now map[string]node
		want      string
	}{
		{"the first look", nil, map[string]node{"b": live(2, 0, "2"), "a": live(3, 0, "3"), "c": dead(1, 1)}, "[a=3 b=2]"},
		{"nothing at first", nil, map[string]node{}, "[]"},
		{"nothing has changed", map[string]node{"a": live(3, 0, "3")}, map[string]node{"a": live(3, 0, "3"), "c": dead(4, 1)}, ""},
		{
			"one transaction",
			map[string]node{"lock": live(3, 0, "3")},
			map[string]node{"lock": dead(5, 1), "w/x": live(5, 0, "x")},
			"[w/x=x -lock]",
		},
		{
			"two transactions",
			map[string]node{"lock": live(3, 0, "3")},
			map[string]node{"lock": dead(6, 1), "w/x": live(5, 0, "x")},
			"[w/x=x] [-lock]",
		},
		{"written again", map[string]node{"a": live(3, 0, "3")}, map[string]node{"a": live(5, 1, "5")}, "[a=5]"},
		{"deleted, and there again", map[string]node{"a": live(3, 0, "3")}, map[string]node{"a": live(5, 2, "5")}, "[-a a=5]"},
		{"created anew", map[string]node{"a": live(3, 7, "3")}, map[string]node{"a": live(5, 0, "5")}, "[-a a=5]"},
		{"the node has gone, too", map[string]node{"a": live(3, 0, "3")}, map[string]node{}, "[-a]"},
		{"back since it was deleted", map[string]node{"a": dead(3, 1)}, map[string]node{"a": live(5, 2, "5")}, "[a=5]"},
	} {
		var reports []string
		for _, some := range changes(part.last, part.now) {
			texts := []string{}
			for _, c := range some {
				if c.Deleted {
					texts = append(texts, "-"+c.Name)
				} else {
					texts = append(texts, c.Name+"="+c.Value)
				}
			}
			reports = append(reports, fmt.Sprint(texts))
		}
		if got := strings.Join(reports, " "); got != part.want {
			t.Errorf("%s: %s; want %s", part.name, got, part.want)
		}
	}
}

func TestATransactionHasOneRoot(t *testing.T) {
	s := newServer(nil)
	for name, txn := range map[string]casstore.Txn{
		"a condition":    {Read: []string{"a/x"}, If: []casstore.Condition{{Name: "b/x"}}},
		"an operation":   {Read: []string{"a/x"}, Then: []casstore.Op{{Name: "b/x"}}},
		"a list":         {Read: []string{"a/x"}, List: []casstore.Range{{Prefix: "b/"}}},
		"what is read":   {If: []casstore.Condition{{Name: "a/x"}}, Read: []string{"b/x"}},
		"what else is":   {If: []casstore.Condition{{Name: "a/x"}}, Else: []string{"b/x"}},
		"an empty name":  {Read: []string{""}},
		"no first part":  {Read: []string{"/x"}},
		"an empty range": {List: []casstore.Range{{}}},
	} {
		if _, err := s.Commit(t.Context(), txn); !errors.Is(err, casstore.ErrRefused) {
			t.Errorf("%s: %v; want ErrRefused", name, err)
		}
	}
}

func TestNumbersThatLeaveNoRoomForTokensAreRefused(t *testing.T) {
	s := newServer(nil)
	s.saw(highest)
	s.saw(1)
	_, err := s.Commit(t.Context(), casstore.Txn{Read: []string{"a/x"}})
	if !errors.Is(err, casstore.ErrRefused) || !errors.Is(err, errFar) {
		t.Errorf("%v; want ErrRefused", err)
	}
}

// tree is a ZooKeeper that answers reads at once.
type tree map[string]node

func (t tree) children(_ context.Context, name string) (names []string, of node, err error) {
	of = t[name]
	for at, n := range t {
		if part, below := strings.CutPrefix(at, name+"/"); below {
			names, of.below = append(names, part), max(of.below, n.number)
		}
	}
	return names, of, nil
}

func (t tree) getAll(_ context.Context, names []string, do func(string, node)) error {
	for _, name := range names {
		do(name, t[name])
	}
	return nil
}

// The names below a node are asked for together with the entries that they must not be older than: here
// another process comes into the line in between.
func TestAListThatHasBegunTooEarlyBeginsAgain(t *testing.T) {
	for name, reads := range map[string]func(line tree) (number int64){
		"no locker comes": func(line tree) int64 { return line["k/line"].number },
		"a locker comes":  func(line tree) int64 { line["k/line"], line["k/line/b"] = live(5, 1, "b"), live(5, 0, ""); return 5 },
	} {
		line := tree{"k/line": live(4, 0, "a"), "k/line/a": live(4, 0, "")}
		l := list{reads: line, of: casstore.Range{Prefix: "k/line/", Limit: 100}}
		l.begin(t.Context())
		number := reads(line)
		if err := l.read(t.Context(), number); err != nil {
			t.Fatal(err)
		}
		if n := len(l.entries); n != len(line)-1 {
			t.Errorf("%s: read at %d, with %d entries listed; want %d", name, number, n, len(line)-1)
		}
	}
}
