//go:build integration && unix

package postgres_test

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/once"
)

// The statements of docs/tool.md have the effects that it describes.
func TestTheStatementsOfTheDocumentShowAndReleaseALock(t *testing.T) {
	t.Parallel()
	document, err := os.ReadFile("../../docs/tool.md")
	if err != nil {
		t.Fatal(err)
	}
	_, block, _ := strings.Cut(string(document), "```sql\n")
	block, _, _ = strings.Cut(block, "```")
	statements := strings.SplitAfter(block, ";\n")
	if len(statements) != 4 {
		t.Fatalf("%d statements:\n%s", len(statements)-1, block)
	}
	list, release, records := statements[0], statements[1], statements[2]

	db, _ := tables(t)
	store := newStore(t, db)
	lease, err := newLocker(t, store).Lock(t.Context(), "account/42")
	if err != nil {
		t.Fatal(err)
	}
	var key, owner, left string
	var token int64
	var waiting int
	if err := db.QueryRowContext(t.Context(), list).Scan(&key, &owner, &token, &left, &waiting); err != nil {
		t.Fatal(err)
	}
	if key != "account/42" || owner == "" || token != lease.Token() || waiting != 0 {
		t.Errorf("%s of %s, token %d, %d wait; the lease has token %d", key, owner, token, waiting, lease.Token())
	}
	for _, c := range []struct{ token, rows int64 }{{token - 1, 0}, {token, 1}, {token, 0}} {
		done, err := db.ExecContext(t.Context(), strings.Replace(release, "1764158400000000", strconv.FormatInt(c.token, 10), 1))
		if err != nil {
			t.Fatal(err)
		}
		if rows, err := done.RowsAffected(); rows != c.rows || err != nil {
			t.Errorf("token %d: %d rows, %v; want %d", c.token, rows, err, c.rows)
		}
	}
	if err := lease.Check(t.Context()); !errors.Is(err, core.ErrLost) {
		t.Errorf("the holder is told %v", err)
	}
	next, err := newLocker(t, store).TryLock(t.Context(), "account/42")
	if err != nil || next.Token() <= token {
		t.Fatalf("the next holder: %v, %v", next, err)
	}
	if err := next.Release(t.Context()); err != nil {
		t.Error(err)
	}

	engine, err := idempotency.New(store, idempotency.Global())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = engine.Close(t.Context()) }()
	if _, err := once.Do(t.Context(), engine, "charge/7", "", func(context.Context, string) (string, error) { return "charged", nil }); err != nil {
		t.Fatal(err)
	}
	var status string
	var count int
	if err := db.QueryRowContext(t.Context(), records).Scan(&status, &count); err != nil || status != "done" || count != 1 {
		t.Errorf("%d %s, %v", count, status, err)
	}
}
