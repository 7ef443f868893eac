package quorum

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core/internal/logs"
	"github.com/interlock-go/interlock/internal/logtest"
)

// The clock of a node of three lags, and a process that has just begun reaches that node
// and one other.
func TestOneClockThatIsBehindLeadsNoTokenBack(t *testing.T) {
	const behind = 9*time.Minute + 30*time.Second
	for name, wait := range map[string]time.Duration{
		"a key that was not used for a minute":      63 * time.Second,
		"a key that was not used for nine minutes":  9 * time.Minute,
		"a key of a holder that died a minute ago":  63 * time.Second,
		"a key of a holder that died nine min. ago": 9 * time.Minute,
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, 3, func(t *testing.T, nodes []*fakeNode) {
				nodes[2].set(func(f *fakeNode) { f.ahead = -behind })
				before := storeOn(t, nodes)
				req := ask("a")
				req.TTL = time.Second
				rep, err := before.Acquire(t.Context(), req)
				if err != nil || !rep.Granted {
					t.Fatalf("%+v, %v", rep, err)
				}
				if !strings.Contains(name, "died") {
					free(t, before, "a", rep.Token)
				}
				time.Sleep(req.TTL + wait)
				nodes[0].set(func(f *fakeNode) { f.down = true })
				after := newcomer(t, nodes)
				next := acquire(t, after, "b")
				if !next.Granted || next.Token <= rep.Token {
					t.Errorf("token %d after %d: it went back by %v", next.Token, rep.Token,
						time.Duration(rep.Token-next.Token)*time.Microsecond)
				}
				free(t, after, "b", next.Token)
				nodes[0].set(func(f *fakeNode) { f.down = false })
			})
		})
	}
}

// Where all nodes answer, a clock that is wrong by more than nodes remember tokens is
// outvoted too, in any order of the answers.
func TestAProcessThatBeginsHearsAllNodesWhereClocksDiffer(t *testing.T) {
	for name, ahead := range map[string]time.Duration{"behind": -1000 * time.Hour, "ahead": 1000 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			bubble(t, 3, func(t *testing.T, nodes []*fakeNode) {
				nodes[2].set(func(f *fakeNode) { f.ahead = ahead })
				nodes[0].set(func(f *fakeNode) { f.latency, f.setUp = 10*time.Millisecond, 20*time.Millisecond })
				s := newcomer(t, nodes)
				for i, n := range s.nodes {
					if i > 0 {
						n.server.(*fakeWire).connect()
					}
				}
				rep := acquire(t, s, "a")
				if off := time.Duration(rep.Token-time.Now().UnixMicro()) * time.Microsecond; !rep.Granted || off.Abs() > time.Second {
					t.Errorf("%+v: the token is %v from the clock of the right nodes", rep, off)
				}
				free(t, s, "a", rep.Token)
				// A node that does not answer is waited for once.
				nodes[0].set(func(f *fakeNode) { f.silent = true })
				s = newcomer(t, nodes)
				if rep := acquire(t, s, "b"); !rep.Granted {
					t.Errorf("got %+v", rep)
				}
				free(t, s, "b", 0)
				before := nodes[1].count("propose")
				if rep := acquire(t, s, "c"); !rep.Granted {
					t.Errorf("got %+v", rep)
				}
				if n := nodes[1].count("propose") - before; n > 2 {
					t.Errorf("the next lock takes %d rounds", n)
				}
				nodes[0].set(func(f *fakeNode) { f.silent = false })
			})
		})
	}
}

func TestCheckComparesTheClocksOfTheNodes(t *testing.T) {
	for name, c := range map[string]struct {
		ahead []time.Duration
		want  []string
	}{
		"alike":         {[]time.Duration{0, 300 * time.Millisecond, -300 * time.Millisecond}, nil},
		"one is behind": {[]time.Duration{0, 0, -5 * time.Minute}, []string{"node2: its clock is 5m0s behind"}},
		"one is ahead":  {[]time.Duration{2 * time.Hour, 0, time.Millisecond}, []string{"node0: its clock is 2h0m0s ahead of"}},
		"all differ": {
			[]time.Duration{0, time.Minute, -time.Minute, 0, 0},
			[]string{"node1: its clock is 1m0s ahead of", "node2: its clock is 1m0s behind"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, len(c.ahead), func(t *testing.T, nodes []*fakeNode) {
				for i, f := range nodes {
					f.ahead, f.latency = c.ahead[i], time.Millisecond
				}
				var said logtest.Log
				s := newcomer(t, nodes)
				s.admission.log = logs.To(said.Logger())
				found, err := s.Check(t.Context())
				if err != nil || len(found) != len(c.want) {
					t.Fatalf("found %q, %v", found, err)
				}
				for i, want := range c.want {
					if !strings.HasPrefix(found[i], want) {
						t.Errorf("found %q, want %q", found[i], want)
					}
				}
				time.Sleep(longest + 2*longest/lookShare)
				if err := s.Close(); err != nil {
					t.Error(err)
				}
				synctest.Wait()
				if n := strings.Count(said.String(), "its clock is"); n != 2*len(c.want) {
					t.Errorf("the log says it %d times, want once a minute for each of %d nodes:\n%s", n, len(c.want), said.String())
				}
			})
		})
	}
}
