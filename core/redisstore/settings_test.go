//go:build integration

package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/internal/logtest"
	"github.com/interlock-go/interlock/internal/redistest"
)

func TestCheckSaysWhatIsUnsafe(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		args     []string
		replicas int
		opts     []redisstore.Option
		says     []string // sorted
	}{
		"safe":           {args: []string{"--appendonly", "yes"}},
		"no persistence": {says: []string{"appendonly is off"}},
		"evicting": {
			args: []string{"--appendonly", "yes", "--maxmemory", "10mb", "--maxmemory-policy", "allkeys-lru"},
			says: []string{"noeviction"},
		},
		"no fsync":  {args: []string{"--appendonly", "yes", "--appendfsync", "no"}, says: []string{"appendfsync"}},
		"a replica": {args: []string{"--appendonly", "yes"}, replicas: 1, says: []string{"Replicas is not set", "min-replicas-to-write"}},
		"no persistence with a replica": {
			args: []string{"--min-replicas-to-write", "1"}, replicas: 1, says: []string{"appendonly is off: a master that restarts", "Replicas is not set"},
		},
		"fewer than there are": {
			args: []string{"--appendonly", "yes", "--min-replicas-to-write", "1"}, replicas: 2,
			opts: []redisstore.Option{redisstore.Replicas(1, time.Second)}, says: []string{"1 of 2"},
		},
		"more than there are": {
			args: []string{"--appendonly", "yes"}, opts: []redisstore.Option{redisstore.Replicas(1, time.Second)},
			says: []string{"no lock can be taken"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := redistest.Replicated(t, c.replicas, redistest.Args(c.args...)).Master
			w := worldOf(t, srv, "interlock")
			found, err := w.over(w.rdb, c.opts...).Check(t.Context())
			if err != nil || len(found) != len(c.says) {
				t.Fatalf("found %q, %v; want %q", found, err, c.says)
			}
			for i, s := range c.says {
				if !strings.Contains(found[i], s) {
					t.Errorf("%q does not say %q", found[i], s)
				}
			}
		})
	}
}

func TestCheckThatCannotLookSaysSo(t *testing.T) {
	t.Parallel()
	w := alone(t)
	w.user("Store.Check")
	w.tell("ACL", "SETUSER", "interlock", "-config")
	s := w.store(restricted)
	w.tell("CONFIG", "SET", "maxmemory", "10mb", "maxmemory-policy", "allkeys-lru")
	// INFO says it, and managed services do not allow CONFIG.
	found, err := s.Check(t.Context())
	if err != nil || len(found) != 2 || !strings.Contains(found[0], "appendonly is off") || !strings.Contains(found[1], "noeviction") {
		t.Errorf("without CONFIG: %q, %v; want the append-only file and the eviction policy", found, err)
	}
	w.tell("CONFIG", "SET", "appendonly", "yes", "maxmemory-policy", "noeviction")
	if found, err = s.Check(t.Context()); err != nil || len(found) != 1 || !strings.Contains(found[0], ": not known: appendfsync") {
		t.Errorf("without CONFIG, with an append-only file: %q, %v", found, err)
	}
	w.Kill()
	_, err = s.Check(w.bounded())
	wantErr(t, err, core.ErrUnavailable)
}

// user makes the user of the documents, with the rights of some rows of the table.
func (w *world) user(rows ...string) {
	w.t.Helper()
	if err := redistest.SetUser(w.t.Context(), w.Client(w.t), "interlock", redistest.Rights(w.t, rows...)...); err != nil {
		w.t.Fatal(err)
	}
}

// tell sends a command.
func (w *world) tell(cmd ...any) {
	w.t.Helper()
	if err := w.rdb.Do(w.t.Context(), cmd...).Err(); err != nil {
		w.t.Fatal(cmd, err)
	}
}

// restricted makes the user of a client the user of the documents.
func restricted(o *redis.Options) { o.Username, o.Password = "interlock", "password" }

func TestTheDocumentedRightsAreEnough(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		part   string
		client func(*redis.Options)
		rows   []string // of the table
	}{
		"locks":                {"locks", func(*redis.Options) {}, nil},
		"lockers":              {"lockers", func(*redis.Options) {}, nil},
		"places":               {"places", func(*redis.Options) {}, []string{"shared locks"}},
		"records":              {"records", func(*redis.Options) {}, []string{"core/idempotency"}},
		"steps":                {"steps", func(*redis.Options) {}, []string{"core/idempotency", "their steps"}},
		"another database":     {"locks", func(o *redis.Options) { o.DB = 1 }, []string{"a database"}},
		"a client with a name": {"locks", func(o *redis.Options) { o.ClientName = "debits" }, []string{"ClientName"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := alone(t)
			w.user(c.rows...)
			s := w.store(restricted, c.client)
			w.listen(s, "k")
			for _, st := range w.life(s, w.rdb, "k") {
				if st.part == c.part {
					w.live([]step{st}, nil)
				}
			}
			if denied := w.Denials(w.t); len(denied) != 0 {
				t.Errorf("refused by the server:\n%s", strings.Join(denied, "\n"))
			}
		})
	}
}

// A lock that could not be ended because of a missing right must not stay for ever.
func TestAMissingRightIsNamed(t *testing.T) {
	t.Parallel()
	for says, rights := range map[string][]any{"evalsha": {"-evalsha", "-eval"}, "+pexpire": {"-pexpire"}} {
		w := alone(t)
		w.user()
		w.tell(append([]any{"ACL", "SETUSER", "interlock"}, rights...)...)
		s := w.store(restricted)
		_, err := s.Acquire(t.Context(), w.held("k", "a:1"))
		err2 := s.Announce(t.Context(), driver.Announcement{ID: strings.Repeat("a", 32), Host: "h", TTL: w.Holds()})
		var reply redis.Error
		for _, err := range []error{err, err2} {
			if !errors.Is(err, core.ErrUnavailable) || !strings.Contains(err.Error(), says) || !errors.As(err, &reply) {
				t.Errorf("%v: %v; want ErrUnavailable that names the right, with the answer of the server", rights, err)
			}
		}
		w.ends()
		w.gone()
	}
}

// The script that moves a lock is refused at its first change.
func TestAHandOverWithoutItsRightLeavesTheLease(t *testing.T) {
	t.Parallel()
	w := alone(t)
	w.user()
	l := w.locker(w.store(restricted))
	lease := w.lock(l, "k")
	w.tell("ACL", "SETUSER", "interlock", "-del")
	_, err := lease.HandOver(t.Context(), w.Holds())
	wantErr(t, err, core.ErrUnavailable)
	if err := errors.Join(lease.Check(t.Context()), lease.Context().Err()); err != nil {
		t.Errorf("the lease ended: %v; want it as it was", err)
	}
	w.tell("ACL", "SETUSER", "interlock", "+del")
	if _, err := lease.HandOver(t.Context(), w.Holds()); err != nil {
		t.Errorf("HandOver with the right: %v", err)
	}
}

// A user without the right to a channel: a release without an announcement happens all the
// same, and the log names the missing right once.
func TestWhatMayNotBeAnnouncedIsDone(t *testing.T) {
	t.Parallel()
	w := alone(t)
	w.tell("ACL", "SETUSER", "quiet", "on", ">secret", "~*", "+@all", "resetchannels")
	for what, end := range map[string]func(w *world, s *redisstore.Store) error{
		"a lock": func(w *world, s *redisstore.Store) error {
			w.take(s, w.held("k", "a:1"))
			w.rdb.HSet(t.Context(), w.name("k"), "q", "another") // waits, and would have to get the announcement
			return w.free(s, "k", "a:1")
		},
		"a place": func(w *world, s *redisstore.Store) error {
			permit := w.held("p", "a:1")
			permit.Kind, permit.AtMost = driver.Permit, 1
			w.take(s, permit)
			permit.Owner, permit.Waiter = "b:1", driver.Waiter(strings.Repeat("b", 32))
			w.acquire(s, permit)
			_, err := s.Release(t.Context(), driver.ReleaseRequest{
				Key: "p", Owner: "a:1", Kind: driver.Permit, AtMost: 1, TTL: w.Holds(), Deadline: w.deadline(),
			})
			return err
		},
		"a claim that is given up": func(w *world, s *redisstore.Store) error {
			w.inFlight(s, "given up")
			return s.Abandon(t.Context(), record.AbandonRequest{ID: "given up", Token: "a", Deadline: w.deadline()})
		},
		"a response": func(w *world, s *redisstore.Store) error {
			w.inFlight(s, "completed")
			rep, err := s.Commit(t.Context(), record.CommitRequest{
				ID: "completed", Token: "a", Generation: 1, Response: []byte("r"), Retention: time.Hour, Deadline: w.deadline(),
			})
			if rep.State != record.StateGranted {
				err = errors.Join(err, fmt.Errorf("state %d", rep.State))
			}
			return err
		},
	} {
		var log logtest.Log
		quiet := w.Client(t, func(o *redis.Options) { o.Username, o.Password = "quiet", "secret" })
		s := w.over(quiet, redisstore.Logger(log.Logger()))
		for range 2 {
			if err := end(w, s); err != nil {
				t.Errorf("%s: %v", what, err)
			}
			w.rdb.Del(t.Context(), w.record("completed"))
		}
		w.soon(what+": the log says that it was not announced", func(context.Context) bool { return log.Count("refused to announce") > 0 })
		if n := log.Count("refused to announce"); n != 1 {
			t.Errorf("%s: the log says %d times that it was not announced", what, n)
		}
	}
	w.gone()
	if denied := w.Denials(w.t); len(denied) < 4 {
		t.Errorf("the server has refused %q only", denied)
	}
}

// inFlight has a claim made by a, for which a duplicate waits.
func (w *world) inFlight(s *redisstore.Store, id string) {
	w.t.Helper()
	for _, token := range []string{"a", "b"} {
		if _, err := s.Claim(w.t.Context(), w.claim(id, token)); err != nil {
			w.t.Fatal(err)
		}
	}
}
