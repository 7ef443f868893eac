package pgstore

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/idempotency/record"
)

// damaged is a database with a record that cannot be read: its page is damaged.
type damaged struct{}

type damage struct{}

func (damage) Error() string    { return "invalid page in block 7 (SQLSTATE XX001)" }
func (damage) SQLState() string { return "XX001" }

func (d damaged) Connect(context.Context) (sqldriver.Conn, error) { return d, nil }
func (damaged) Driver() sqldriver.Driver                          { return nil }
func (damaged) Prepare(string) (sqldriver.Stmt, error)            { return nil, damage{} }
func (damaged) Begin() (sqldriver.Tx, error)                      { return nil, damage{} }
func (damaged) Close() error                                      { return nil }

func (damaged) QueryContext(_ context.Context, _ string, args []sqldriver.NamedValue) (sqldriver.Rows, error) {
	ids := fmt.Sprint(args[0].Value)
	if strings.Contains(ids, "bad") {
		return nil, damage{}
	}
	return &renewed{left: strings.Count(ids, ",") + 1}, nil
}

// renewed are the rows of renewals that have succeeded.
type renewed struct{ n, left int }

func (*renewed) Columns() []string { return []string{"number", "outcome"} }
func (*renewed) Close() error      { return nil }

func (r *renewed) Next(row []sqldriver.Value) error {
	if r.n == r.left {
		return io.EOF
	}
	r.n++
	row[0], row[1] = int64(r.n), "o"
	return nil
}

// One statement renews many claims. A damaged row of one failed all of them.
func TestADamagedRecordFailsNoClaimBesideIt(t *testing.T) {
	db := sql.OpenDB(damaged{})
	s, err := New(db, SweepEvery(-1), Logger(slog.New(slog.DiscardHandler)))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = s.Close(), db.Close() }()
	var batch []record.Extension
	for _, id := range []string{"a", "b", "c", "bad", "d", "e", "f"} {
		batch = append(batch, record.Extension{ID: id, Token: "t", Lease: time.Minute, Retention: time.Hour})
	}
	outcomes := map[string]error{}
	s.Extend(t.Context(), batch, func(i int, err error) { outcomes[batch[i].ID] = err })
	for _, e := range batch {
		err, told := outcomes[e.ID]
		if !told || (err != nil) != (e.ID == "bad") {
			t.Errorf("%s: %v, with an outcome: %v; want an error for the damaged record alone", e.ID, err, told)
		}
	}
}
