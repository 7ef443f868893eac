package pgstore_test

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"io/fs"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/observe"
	"github.com/interlock-go/interlock/core/pgstore"
)

// nowhere is a database that cannot be reached.
type nowhere struct{}

var errNowhere = errors.New("no route to the database")

func (nowhere) Connect(context.Context) (sqldriver.Conn, error) { return nil, errNowhere }
func (nowhere) Driver() sqldriver.Driver                        { return nil }

func TestBadOptionsSayWhatIsAccepted(t *testing.T) {
	db := sql.OpenDB(nowhere{})
	defer func() { _ = db.Close() }()
	for text, opt := range map[string]pgstore.Option{
		"Schema":      pgstore.Schema("Mine"),
		"Prefix":      pgstore.Prefix("a;drop table"),
		"Records":     pgstore.Records(nil),
		"IdleTimeout": pgstore.IdleTimeout(0),
		"LockTimeout": pgstore.LockTimeout(-time.Second),
		"Timeout":     pgstore.Timeout(time.Millisecond),
		"Listen":      pgstore.Listen(nil),
		"SweepEvery":  pgstore.SweepEvery(0),
		"KeepTokens":  pgstore.KeepTokens(0),
		// PostgreSQL takes no timeout above 24 days, and sums of times overflow.
		"IdleTimeout(2562047h": pgstore.IdleTimeout(math.MaxInt64),
		"LockTimeout(600h":     pgstore.LockTimeout(25 * 24 * time.Hour),
		"Timeout(2562047h":     pgstore.Timeout(math.MaxInt64),
		"SweepEvery(2562047h":  pgstore.SweepEvery(math.MaxInt64),
		"KeepTokens(2562047h":  pgstore.KeepTokens(math.MaxInt64),
	} {
		_, err := pgstore.New(db, nil, opt)
		if !strings.Contains(text, "(") {
			text += "("
		}
		if !errors.Is(err, driver.ErrConfig) || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v", text, err)
		}
	}
	if _, err := pgstore.New(nil); !errors.Is(err, driver.ErrConfig) {
		t.Errorf("New(nil): %v", err)
	}
}

func TestGuardsThatShareAreMadeOnPostgreSQL(t *testing.T) {
	db := sql.OpenDB(nowhere{})
	defer func() { _ = db.Close() }()
	store, err := pgstore.New(db)
	if err != nil {
		t.Fatal(err)
	}
	l, err := core.New(store)
	if err != nil {
		t.Fatal(err)
	}
	for name, opt := range map[string]core.GuardOption{
		"Shared": core.Shared(), "Permits": core.Permits(3), "ShareReads": core.ShareReads(),
	} {
		if _, err := core.NewGuard(l, "k", opt); err != nil {
			t.Errorf("%s: %v; want no error", name, err)
		}
	}
}

// TestADatabaseThatCannotBeReached fails each request within its time, as unavailable.
func TestADatabaseThatCannotBeReached(t *testing.T) {
	synctest.Test(t, unreachable)
}

func unreachable(t *testing.T) {
	db := sql.OpenDB(nowhere{})
	defer func() { _ = db.Close() }()
	store, err := pgstore.New(db)
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	soon := func() time.Time { return time.Now().Add(200 * time.Millisecond) }
	late := make(chan error, 1)
	_, err = store.Claim(ctx, record.ClaimRequest{
		ID: "id", Token: "t", Deadline: soon(), Late: func(_ record.ClaimReply, err error) { late <- err },
	})
	if errors.Is(err, driver.ErrPending) {
		err = <-late
	}
	errs := map[string]error{
		"Claim":   err,
		"Mark":    store.Mark(ctx, record.MarkRequest{Deadline: soon()}),
		"Abandon": store.Abandon(ctx, record.AbandonRequest{Deadline: soon()}),
		"Resolve": store.Resolve(ctx, record.ResolveRequest{Deadline: soon()}),
		"Forget":  store.Forget(ctx, "id"),
	}
	released := 0
	_, errs["Commit"] = store.Commit(ctx, record.CommitRequest{Deadline: soon(), Release: func(context.Context) { released++ }})
	store.Extend(ctx, make([]record.Extension, 1), func(_ int, err error) { errs["Extend"] = err })
	for what, err := range errs {
		if !errors.Is(err, driver.ErrUnavailable) || !errors.Is(err, errNowhere) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if released != 1 {
		t.Errorf("a commit that failed released the lock %d times; want once", released)
	}
	for range 2 {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	}
}

// broken is a database with connections that break under each statement. Its driver says
// that nothing was executed, which it cannot know.
type broken struct{ nowhere }

func (b broken) Connect(context.Context) (sqldriver.Conn, error) { return b, nil }
func (broken) Prepare(string) (sqldriver.Stmt, error)            { return nil, sqldriver.ErrBadConn }

func (broken) Begin() (sqldriver.Tx, error) { return nil, sqldriver.ErrBadConn }
func (broken) Close() error                 { return nil }

// TestABrokenConnectionMayHaveMadeAClaim looks at the outcome of a claim without an answer.
// lib/pq returns ErrBadConn then. After a claim that was never sent nothing is to be cleaned
// up.
func TestABrokenConnectionMayHaveMadeAClaim(t *testing.T) {
	for name, c := range map[string]struct {
		db        sqldriver.Connector
		busy      bool // another caller has the connections of the pool
		ambiguous bool
	}{
		"no connection":                   {nowhere{}, false, false},
		"a pool that has none left":       {broken{}, true, false},
		"a connection that breaks":        {broken{}, false, true},
		"no connection at the second try": {&wearing{}, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				db := sql.OpenDB(c.db)
				defer func() { _ = db.Close() }()
				if c.busy {
					db.SetMaxOpenConns(1)
					conn, err := db.Conn(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					defer func() { _ = conn.Close() }()
				}
				store, err := pgstore.New(db, pgstore.Timeout(50*time.Millisecond))
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = store.Close() }()
				late := make(chan record.ClaimReply, 1)
				rep, err := store.Claim(t.Context(), record.ClaimRequest{
					ID: "id", Token: "t", Deadline: time.Now().Add(200 * time.Millisecond), Late: func(rep record.ClaimReply, _ error) { late <- rep },
				})
				if errors.Is(err, driver.ErrPending) {
					rep = <-late
				}
				if rep.Ambiguous != c.ambiguous {
					t.Errorf("ambiguous %v; want %v", rep.Ambiguous, c.ambiguous)
				}
			})
		})
	}
}

// wearing is a database that cannot be reached once its first connection has broken.
type wearing struct{ used atomic.Bool }

func (w *wearing) Connect(context.Context) (sqldriver.Conn, error) {
	if w.used.Swap(true) {
		return nil, errNowhere
	}
	return broken{}, nil
}
func (*wearing) Driver() sqldriver.Driver { return nil }

// TestCloseBesideClaims has claims begin while the store is closed: each ends, and none
// begins that Close does not wait for.
func TestCloseBesideClaims(t *testing.T) {
	db := sql.OpenDB(nowhere{})
	defer func() { _ = db.Close() }()
	for range 50 {
		store, err := pgstore.New(db)
		if err != nil {
			t.Fatal(err)
		}
		ask := record.ClaimRequest{ID: "id", Token: "t", Deadline: time.Now(), Late: func(record.ClaimReply, error) {}}
		var claims sync.WaitGroup
		for range 8 {
			claims.Go(func() {
				for range 20 {
					if _, err := store.Claim(t.Context(), ask); err == nil {
						t.Error("a claim is granted by no database")
					}
				}
			})
		}
		if err := store.Close(); err != nil {
			t.Error(err)
		}
		claims.Wait()
		if _, err := store.Claim(t.Context(), ask); !errors.Is(err, driver.ErrUnavailable) || !strings.Contains(observe.RootCause(err).Error(), "closed") {
			t.Errorf("a claim after Close: %v", err)
		}
	}
}

func TestMigrationsAreNumbered(t *testing.T) {
	files, err := fs.Glob(pgstore.Migrations(), "*.sql")
	if err != nil || len(files) == 0 || !strings.HasPrefix(files[0], "0001_") {
		t.Fatalf("%v, %v", files, err)
	}
	text, err := fs.ReadFile(pgstore.Migrations(), files[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range []string{"interlock_record", "interlock_fence", "interlock_lock"} {
		if !strings.Contains(string(text), "CREATE TABLE "+table) {
			t.Errorf("%s does not make the table %s", files[0], table)
		}
	}
}
