//go:build integration && unix

package postgres_test

import (
	"strings"
	"testing"

	"github.com/interlock-go/interlock/trust/internal/pgtest"
)

func TestCheckSaysWhatTheUserMayNotSee(t *testing.T) {
	t.Parallel()
	srv := pgtest.Start(t)
	db := srv.Open(t)
	s := newStore(t, db)
	check := func(want string) {
		t.Helper()
		found, err := s.Check(t.Context())
		if all := strings.Join(found, "; "); err != nil || want == "" && all != "" || !strings.Contains(all, want) {
			t.Errorf("Check returns %q, %v; want a sentence with %q, or none", found, err, want)
		}
	}
	check("")
	held, err := db.Conn(t.Context()) // a session of another user
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = held.Close() }()
	execute(t, db, "CREATE ROLE service LOGIN")
	other := connect(t, strings.Replace(srv.DSN(), "user=postgres", "user=service", 1))
	s = newStore(t, other)
	check("GRANT pg_read_all_stats")
	execute(t, db, "GRANT pg_read_all_stats TO service")
	check("")
}
