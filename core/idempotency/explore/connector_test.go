package explore_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/interlock-go/interlock/core/idempotency/explore"
)

// table is a database with one table, for a driver of database/sql. A row is the argument of a statement.
type table struct {
	mu     sync.Mutex
	rows   []string
	unique bool
}

func (t *table) Connect(context.Context) (driver.Conn, error) { return &session{table: t}, nil }
func (t *table) Driver() driver.Driver                        { return nil }

// session is a connection to a table, with the rows of its transaction.
type session struct {
	*table
	open []string
}

func (s *session) Prepare(string) (driver.Stmt, error) { return nil, errors.New("no statements") }
func (s *session) Close() error                        { s.open = nil; return nil }
func (s *session) Begin() (driver.Tx, error)           { s.open = nil; return s, nil }
func (s *session) Rollback() error                     { s.open = nil; return nil }

func (s *session) Commit() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, row := range s.open {
		if !s.unique || !strings.Contains(strings.Join(s.rows, " "), row) {
			s.rows = append(s.rows, row)
		}
	}
	s.open = nil
	return nil
}

func (s *session) ExecContext(_ context.Context, _ string, args []driver.NamedValue) (driver.Result, error) {
	s.open = append(s.open, fmt.Sprint(args[0].Value))
	return driver.RowsAffected(1), nil
}

// inserting is a consumer that inserts the ID of each message.
func inserting(t *table) explore.Service {
	return explore.Service{
		Messages: []explore.Message{{ID: "m1"}, {ID: "m2"}},
		Start:    func(*explore.World) { t.rows = nil },
		Consumer: func(p *explore.Process) func(context.Context, explore.Message) error {
			db := sql.OpenDB(p.Connector(t))
			p.Cleanup(func() { _ = db.Close() })
			return func(ctx context.Context, m explore.Message) error {
				tx, err := db.BeginTx(ctx, nil)
				if err != nil {
					return err
				}
				defer func() { _ = tx.Rollback() }()
				if _, err := tx.ExecContext(ctx, "INSERT INTO consumed VALUES ($1)", m.ID); err != nil {
					return err
				}
				return tx.Commit()
			}
		},
		Invariant: func(*explore.World) error {
			if len(t.rows) != 2 {
				return fmt.Errorf("%d rows %v, want 2", len(t.rows), t.rows)
			}
			return nil
		},
	}
}

func TestADatabaseOfDatabaseSQLTakesPart(t *testing.T) {
	r := explore.Find(t, inserting(&table{}))
	const want = "process B died after COMMIT and before acknowledgement of message 1: 3 rows [m1 m1 m2], want 2"
	if r.Failure == nil || r.Failure.Faults+": "+r.Failure.Broken != want {
		t.Errorf("found %v, want %q", r.Failure, want)
	}
	explore.Run(t, inserting(&table{unique: true}))
}
