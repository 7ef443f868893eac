//go:build integration && unix

package postgres_test

import (
	"database/sql"
	"net/http"
	"strings"
	"testing"

	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/pgstore"
)

// TestSettingsThatAHandlerChanges has handlers change settings that affect the names of tables
// and the rights to them. The statement that stores the answer comes later in the transaction.
func TestSettingsThatAHandlerChanges(t *testing.T) {
	const rights = "GRANT USAGE ON SCHEMA %[2]s TO %[1]s; GRANT INSERT ON ledger TO %[1]s"
	for name, c := range map[string]struct {
		schema     bool     // the store has the option Schema
		rights     string   // of the role, in addition
		statements []string // of the handler
		status     int
		paid       int
	}{
		"search_path":                  {false, "", []string{"SET LOCAL search_path TO pg_catalog"}, 503, 0},
		"search_path, with Schema":     {true, "", []string{"SET LOCAL search_path TO pg_catalog"}, 200, 1},
		"search_path, set back":        {false, "", []string{"SET LOCAL search_path TO pg_catalog", "SET LOCAL search_path TO %[2]s"}, 200, 1},
		"role":                         {false, "", []string{"SET LOCAL ROLE %[1]s"}, 503, 0},
		"role, with rights on records": {false, "; GRANT SELECT, UPDATE ON interlock_record TO %[1]s", []string{"SET LOCAL ROLE %[1]s"}, 200, 1},
		"role, set back":               {false, "", []string{"SET LOCAL ROLE %[1]s", "RESET ROLE"}, 200, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, dsn := tables(t)
			schema := schemaOf(dsn)
			of := strings.NewReplacer("%[1]s", schema+"_tenant", "%[2]s", schema)
			var opts []pgstore.Option
			if c.schema {
				opts = append(opts, pgstore.Schema(schema))
			}
			s := newService(t, db, newStore(t, db, opts...), func(w http.ResponseWriter, r *http.Request, tx *pgstore.Transaction) {
				pay(t, r, tx)
				for _, text := range c.statements {
					execute(t, tx, of.Replace(text))
				}
				say(w, "paid")
			})
			execute(t, db, of.Replace("CREATE ROLE %[1]s; "+rights+c.rights))
			text := "paid"
			if c.status != 200 {
				text = rolledBack
			}
			s.want("a", c.status, text)
			s.paid(c.paid)
		})
	}
}

// TestMarkEffectInATransaction has handlers mark an effect elsewhere, before or after the first
// statement of their transaction. From REPEATABLE READ on the commit must not find that the
// record has changed since.
func TestMarkEffectInATransaction(t *testing.T) {
	for name, c := range map[string]struct {
		level  sql.IsolationLevel
		before bool // the first statement
		status int
		text   string
		paid   int
	}{
		"read committed, after":   {sql.LevelReadCommitted, false, 200, "paid", 1},
		"repeatable read, before": {sql.LevelRepeatableRead, true, 200, "paid", 1},
		"repeatable read, after":  {sql.LevelRepeatableRead, false, 409, unknownOutcome, 0},
		"serializable, after":     {sql.LevelSerializable, false, 409, unknownOutcome, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, _ := tables(t)
			s := newService(t, db, newStore(t, db, pgstore.Isolation(c.level)), func(w http.ResponseWriter, r *http.Request, tx *pgstore.Transaction) {
				if !c.before {
					pay(t, r, tx)
				}
				if err := idempotency.MarkEffect(r.Context()); err != nil {
					t.Error(err)
				}
				if c.before {
					pay(t, r, tx)
				}
				say(w, "paid")
			})
			s.want("a", c.status, c.text)
			s.paid(c.paid)
		})
	}
}
