//go:build integration && unix

package postgres_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/interlock-go/interlock/core/pgstore"
	"github.com/interlock-go/interlock/trust/internal/pgtest"
)

// checker wants sentences of Check of a store on a pool.
func checker(t *testing.T, s *pgstore.Store, want ...string) {
	t.Helper()
	found, err := s.Check(t.Context())
	missing := slices.DeleteFunc(slices.Clone(want), func(text string) bool {
		return slices.ContainsFunc(found, func(sentence string) bool { return strings.Contains(sentence, text) })
	})
	if err != nil || len(missing) > 0 || len(found) != len(want) {
		t.Errorf("Check returns %q, %v; want a sentence each with %q", found, err, want)
	}
}

func TestCheckSaysWhatTheUserMayNotSee(t *testing.T) {
	t.Parallel()
	srv := pgtest.Start(t)
	db := srv.Open(t)
	s := newStore(t, db)
	migrate(t, s)
	checker(t, s)
	held, err := db.Conn(t.Context()) // a session of another user
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = held.Close() }()
	execute(t, db, "CREATE ROLE service LOGIN")
	other := connect(t, strings.Replace(srv.DSN(), "user=postgres", "user=service", 1))
	s = newStore(t, other)
	checker(t, s, "GRANT pg_read_all_stats")
	execute(t, db, "GRANT pg_read_all_stats TO service")
	checker(t, s)
}

// A role, a database or a table can have settings that the promises of a store rest on.
func TestCheckNamesTheDefaultsThatAPromiseRestsOn(t *testing.T) {
	t.Parallel()
	srv := pgtest.Start(t)
	owner := srv.Open(t)
	migrate(t, newStore(t, owner))
	execute(t, owner, "CREATE ROLE service LOGIN; GRANT pg_read_all_stats TO service; "+
		"GRANT SELECT, INSERT, UPDATE, DELETE ON interlock_record, interlock_lock, interlock_fence TO service; CREATE ROLE stranger")
	service := func() *pgstore.Store {
		return newStore(t, connect(t, strings.Replace(srv.DSN(), "user=postgres", "user=service", 1)))
	}
	checker(t, service())
	for _, c := range []struct{ on, off, want string }{
		{"ALTER ROLE service SET synchronous_commit = off", "ALTER ROLE service RESET ALL", "synchronous_commit is off for the role service"},
		{"ALTER DATABASE postgres SET synchronous_commit = off", "ALTER DATABASE postgres RESET ALL", "synchronous_commit is off for the role service"},
		{"ALTER ROLE service SET default_transaction_read_only = on", "ALTER ROLE service RESET ALL", "only read"},
		{"ALTER ROLE service SET bytea_output = escape", "ALTER ROLE service RESET ALL", "bytea_output"},
		{"ALTER TABLE interlock_lock SET UNLOGGED", "ALTER TABLE interlock_lock SET LOGGED", "empties interlock_lock"},
		{"ALTER TABLE interlock_record ENABLE ROW LEVEL SECURITY", "SELECT 1", "security of interlock_record"},
		{"CREATE POLICY reads ON interlock_record FOR SELECT USING (true)", "SELECT 1", "security of interlock_record"},
		{"CREATE POLICY others ON interlock_record TO stranger USING (true)", "SELECT 1", "security of interlock_record"},
	} {
		execute(t, owner, c.on)
		checker(t, service(), c.want)
		execute(t, owner, c.off)
	}
	execute(t, owner, "CREATE POLICY all_rows ON interlock_record USING (true)")
	checker(t, service())
	// An operator connects as another user than the service.
	execute(t, owner, "ALTER ROLE service SET synchronous_commit = off; ALTER ROLE stranger SET synchronous_commit = off")
	checker(t, newStore(t, owner), "synchronous_commit is off for the role service:")
	// Handlers may have another pool than the records.
	checker(t, newStore(t, connect(t, strings.Replace(srv.DSN(), "user=postgres", "user=service", 1)), pgstore.Records(owner)), "off for the role service")
}
