package fencing_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/fencing"
	"github.com/interlock-go/interlock/core/memstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// begin returns a transaction of the database.
func begin(t *testing.T, f *fakeDB) *sql.Tx {
	t.Helper()
	db := f.open()
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = tx.Rollback()
		_ = db.Close()
	})
	return tx
}

const insert = "INSERT INTO interlock_fence AS fence (key, token) VALUES ($1, $2)" +
	" ON CONFLICT (key) DO UPDATE SET token = excluded.token WHERE fence.token <= excluded.token"

func TestAClaimIsOneStatementAndARefusalTwo(t *testing.T) {
	accounts := fencing.Column{Table: "accounts", ID: "id", Fence: "fence"}
	for name, c := range map[string]struct {
		claim      func(context.Context, *sql.Tx) error
		take, find string
		key        string
	}{
		"table": {
			func(ctx context.Context, tx *sql.Tx) error { return fencing.Table{}.Claim(ctx, tx, "account/42", 7) },
			insert + " [account/42] [7]", "SELECT token FROM interlock_fence WHERE key = $1 [account/42]", "account/42",
		},
		"table with a name": {
			func(ctx context.Context, tx *sql.Tx) error {
				return fencing.Table{Name: `bank."f"`}.Claim(ctx, tx, "a", 7)
			},
			`INSERT INTO bank."f" AS fence (key, token) VALUES ($1, $2)` +
				` ON CONFLICT (key) DO UPDATE SET token = excluded.token WHERE fence.token <= excluded.token [a] [7]`,
			`SELECT token FROM bank."f" WHERE key = $1 [a]`, "a",
		},
		"key that is no text": {
			func(ctx context.Context, tx *sql.Tx) error { return fencing.Table{}.Claim(ctx, tx, "ü/\x00\\\xff", 7) },
			insert + ` [\303\274/\000\\\377] [7]`, `SELECT token FROM interlock_fence WHERE key = $1 [\303\274/\000\\\377]`, "ü/\x00\\\xff",
		},
		"column": {
			func(ctx context.Context, tx *sql.Tx) error { return accounts.Claim(ctx, tx, 42, 7) },
			"UPDATE accounts SET fence = $1 WHERE id = $2 AND fence <= $1 [7] [42]",
			"SELECT fence FROM accounts WHERE id = $1 AND fence > $2 [42] [7]", "42",
		},
	} {
		t.Run(name, func(t *testing.T) {
			free := &fakeDB{}
			if err := c.claim(t.Context(), begin(t, free)); err != nil {
				t.Error(err)
			}
			if got := free.said(); !slices.Equal(got, []string{"begin", c.take}) {
				t.Errorf("a claim says %q", got)
			}

			claimed := &fakeDB{latest: 8}
			err := c.claim(t.Context(), begin(t, claimed))
			var stale *fencing.StaleError
			if !errors.As(err, &stale) || *stale != (fencing.StaleError{Key: c.key, Token: 7, Latest: 8}) {
				t.Errorf("refused with %v", err)
			}
			if !errors.Is(err, fencing.ErrStale) || !errors.Is(err, core.ErrLost) {
				t.Errorf("%v matches neither ErrStale nor core.ErrLost", err)
			}
			if got := claimed.said(); !slices.Equal(got, []string{"begin", c.take, c.find}) {
				t.Errorf("a refusal says %q", got)
			}

			gone := &fakeDB{latest: -1}
			if err := c.claim(t.Context(), begin(t, gone)); !errors.Is(err, sql.ErrNoRows) || errors.Is(err, fencing.ErrStale) {
				t.Errorf("nothing to claim: %v", err)
			}
			broken := &fakeDB{fails: map[string]error{c.take: errBroken}}
			if err := c.claim(t.Context(), begin(t, broken)); !errors.Is(err, errBroken) || errors.Is(err, fencing.ErrStale) {
				t.Errorf("broken: %v", err)
			}
		})
	}
}

var errBroken = errors.New("database broken")

func TestWhatIsNoTokenClaimsNothing(t *testing.T) {
	f := &fakeDB{}
	tx := begin(t, f)
	for _, token := range []int64{0, -1} {
		if err := (fencing.Table{}).Claim(t.Context(), tx, "k", token); !errors.Is(err, core.ErrConfig) {
			t.Errorf("%d: %v", token, err)
		}
	}
	if got := f.said(); len(got) != 1 {
		t.Errorf("the database was asked %q", got)
	}
}

func TestSchemaAndPrune(t *testing.T) {
	f := &fakeDB{}
	db := f.open()
	defer db.Close()
	if got := (fencing.Table{}).Schema(); got != "CREATE TABLE IF NOT EXISTS interlock_fence (key text NOT NULL PRIMARY KEY, token bigint NOT NULL)" {
		t.Error(got)
	}
	n, err := fencing.Table{Name: "f"}.Prune(t.Context(), db, time.UnixMicro(1234))
	if got := f.said(); n != 1 || err != nil || !slices.Equal(got, []string{"DELETE FROM f WHERE token < $1 [1234]"}) {
		t.Errorf("%d, %v, %q", n, err, got)
	}
}

// lock locks two keys.
func lock(t *testing.T, opts ...core.Option) (*memstore.Store, *core.Lease) {
	t.Helper()
	s := memstore.New()
	locker, err := core.New(s)
	if err != nil {
		t.Fatal(err)
	}
	lease, err := locker.LockAll(t.Context(), []string{"b", "a"}, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = lease.Release(context.Background())
		_ = locker.Close(context.Background())
	})
	return s, lease
}

func TestATransactionClaimsAllKeysOfItsLeaseFirst(t *testing.T) {
	f := &fakeDB{}
	db := f.open()
	defer db.Close()
	_, lease := lock(t)
	err := fencing.Table{}.InTx(t.Context(), db, lease, nil, func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "UPDATE")
		return err
	})
	a, _ := lease.TokenFor("a")
	b, _ := lease.TokenFor("b")
	want := []string{
		"begin", insert + fmt.Sprintf(" [a] [%d]", a), insert + fmt.Sprintf(" [b] [%d]", b), "UPDATE", "commit",
	}
	if got := f.said(); err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %q, want %q", err, got, want)
	}
}

func away(memstore.Request) memstore.Fault { return memstore.Unreachable }

func TestWhatEndsATransactionWithoutACommit(t *testing.T) {
	work := func(context.Context, *sql.Tx) error { return nil }
	mine := errors.New("of the handler")
	for name, c := range map[string]struct {
		db     *fakeDB // nil: a database that agrees to everything
		before func(*memstore.Store, *core.Lease)
		fn     func(*memstore.Store, *core.Lease) func(context.Context, *sql.Tx) error
		want   error
		said   []string // beginnings
	}{
		"a stale token": {
			db: &fakeDB{latest: 9}, want: fencing.ErrStale, said: []string{"begin", "INSERT", "SELECT", "rollback"},
		},
		"a handler that fails": {
			fn: func(*memstore.Store, *core.Lease) func(context.Context, *sql.Tx) error {
				return func(context.Context, *sql.Tx) error { return mine }
			},
			want: mine, said: []string{"begin", "INSERT", "INSERT", "rollback"},
		},
		"a database that refuses the claim": {
			db:   &fakeDB{fails: map[string]error{"INSERT": errBroken}},
			want: errBroken, said: []string{"begin", "INSERT", "rollback"},
		},
		"a database that cannot begin": {
			db: &fakeDB{fails: map[string]error{"begin": errBroken}}, want: errBroken, said: []string{"begin"},
		},
		"a lock that is gone just before the commit": {
			fn: func(s *memstore.Store, _ *core.Lease) func(context.Context, *sql.Tx) error {
				return func(context.Context, *sql.Tx) error { s.Expire("a"); return nil }
			},
			want: core.ErrLost, said: []string{"begin", "INSERT", "INSERT", "rollback"},
		},
		"a store that does not answer": {
			fn: func(s *memstore.Store, _ *core.Lease) func(context.Context, *sql.Tx) error {
				return func(context.Context, *sql.Tx) error { s.Intercept(away); return nil }
			},
			want: core.ErrUnavailable, said: []string{"begin", "INSERT", "INSERT", "rollback"},
		},
		"a lease that ends in the middle": {
			fn: func(_ *memstore.Store, lease *core.Lease) func(context.Context, *sql.Tx) error {
				return func(ctx context.Context, _ *sql.Tx) error {
					_ = lease.Release(ctx)
					<-ctx.Done()
					return errBroken // like a driver after its statement was cancelled
				}
			},
			want: core.ErrReleased, said: []string{"begin", "INSERT", "INSERT", "rollback"},
		},
		"a lease that was released before": {
			before: func(_ *memstore.Store, lease *core.Lease) { _ = lease.Release(context.Background()) },
			want:   core.ErrReleased,
		},
		"a commit that fails": {
			db:   &fakeDB{fails: map[string]error{"commit": errBroken}},
			want: errBroken, said: []string{"begin", "INSERT", "INSERT", "commit"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if c.db == nil {
				c.db = &fakeDB{}
			}
			db := c.db.open()
			defer db.Close()
			s, lease := lock(t)
			if c.before != nil {
				c.before(s, lease)
			}
			fn := work
			if c.fn != nil {
				fn = c.fn(s, lease)
			}
			// Not the lease's context: it ends with the lease all the same.
			err := fencing.Table{}.InTx(t.Context(), db, lease, nil, fn)
			if !errors.Is(err, c.want) {
				t.Errorf("%v, want %v", err, c.want)
			}
			s.Intercept(nil)
			said := c.db.said()
			if len(said) != len(c.said) {
				t.Fatalf("%q, want %q", said, c.said)
			}
			for i, beginning := range c.said {
				if said[i][:min(len(said[i]), len(beginning))] != beginning {
					t.Errorf("%q, want %q", said, c.said)
				}
			}
		})
	}
}

func TestWithoutALeaseNothingBegins(t *testing.T) {
	f := &fakeDB{}
	db := f.open()
	defer db.Close()
	err := fencing.Table{}.InTx(t.Context(), db, core.LeaseFromContext(t.Context()), nil, nil)
	if !errors.Is(err, core.ErrNoLease) || len(f.said()) > 0 {
		t.Errorf("%v, %q", err, f.said())
	}
}

func TestATransactionEndsWithItsCaller(t *testing.T) {
	f := &fakeDB{}
	db := f.open()
	defer db.Close()
	_, lease := lock(t)
	gone := errors.New("the client has gone")
	ctx, cancel := context.WithCancelCause(t.Context())
	err := fencing.InTx(ctx, db, lease, nil, func(ctx context.Context, _ *sql.Tx) error {
		cancel(gone)
		<-ctx.Done()
		return ctx.Err()
	})
	if !errors.Is(err, gone) || errors.Is(err, core.ErrLost) {
		t.Errorf("%v, want the cause of the caller's context", err)
	}
	if slices.Contains(f.said(), "commit") {
		t.Error("committed")
	}
}

func TestAPanicRollsBackAndPassesThrough(t *testing.T) {
	f := &fakeDB{}
	db := f.open()
	defer db.Close()
	_, lease := lock(t)
	defer func() {
		if r := recover(); r != "mine" {
			t.Errorf("recovered %v", r)
		}
		if got := f.said(); got[len(got)-1] != "rollback" {
			t.Errorf("%q", got)
		}
	}()
	_ = fencing.InTx(t.Context(), db, lease, nil, func(context.Context, *sql.Tx) error { panic("mine") })
}

func TestAnIdempotencyKeyIsOfItsPartsAndNothingElse(t *testing.T) {
	// Pinned: a release that changed it would let operations happen twice.
	const want = "f5d376d0-3572-81f8-9c4a-f406513c843c"
	if got := fencing.IdempotencyKey("invoice", "4711", "settle"); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if form := regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`); !form.MatchString(want) {
		t.Errorf("%s is no UUID of version 8", want)
	}
	seen := map[string][]string{}
	for _, parts := range [][]string{{""}, {"", ""}, {"a"}, {"a", ""}, {"", "a"}, {"a", "bc"}, {"ab", "c"}, {"abc"}, {"a\nbc"}} {
		key := fencing.IdempotencyKey(parts[0], parts[1:]...)
		if other, ok := seen[key]; ok {
			t.Errorf("%q and %q have one key", parts, other)
		}
		seen[key] = parts
	}
}

// lib/pq waits for the answer of a server that hangs, also after the end of a context.
func TestACommitThatTheDriverDoesNotReturnFromEndsInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		back := make(chan struct{})
		db := (&fakeDB{hangs: back}).open()
		defer db.Close()
		_, lease := lock(t)
		time.AfterFunc(50*time.Second, func() { close(back) })
		begin := time.Now()
		err := fencing.Table{}.InTx(t.Context(), db, lease, nil, func(context.Context, *sql.Tx) error { return nil })
		if took := time.Since(begin); !errors.Is(err, context.DeadlineExceeded) || took > 11*time.Second {
			t.Errorf("the commit ends after %v with %v; want %v after ten seconds", took, err, context.DeadlineExceeded)
		}
		<-back // before it database/sql has the connection
	})
}
