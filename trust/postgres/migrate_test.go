//go:build integration && unix

package postgres_test

import (
	"bytes"
	"sync"
	"testing"

	"github.com/interlock-go/interlock/core/pgstore"
	"github.com/interlock-go/interlock/trust/internal/pgtest"
)

// TestProcessesThatMigrateAtTheSameTime has a process migrate while another one is about to
// commit the tables that it has made: the second process has found no table, waits, and
// finds them.
func TestProcessesThatMigrateAtTheSameTime(t *testing.T) {
	for name, c := range map[string]struct {
		also string // of how the second process connects
		opts func(schema string) []pgstore.Option
	}{
		"alike":                 {},
		"at REPEATABLE READ":    {also: ` options='-c default_transaction_isolation=repeatable\\ read'`},
		"who name their schema": {opts: func(schema string) []pgstore.Option { return []pgstore.Option{pgstore.Schema(schema)} }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dsn := pgtest.DSN(t)
			about, commits := make(chan struct{}, 10), make(chan struct{})
			let := sync.OnceFunc(func() { close(commits) })
			defer let()
			first := newStore(t, (&wire{sending: func(text []byte) error {
				if bytes.Contains(text, commit) {
					about <- struct{}{}
					<-commits
				}
				return nil
			}}).through(t, dsn))
			var opts []pgstore.Option
			if c.opts != nil {
				opts = c.opts(schemaOf(dsn))
			}
			waits := "waits_" + schemaOf(dsn)
			second := newStore(t, connect(t, dsn+c.also+" application_name="+waits), opts...)

			ended := make(chan error, 2)
			go func() { ended <- first.Migrate(t.Context()) }()
			receive(t, "the first process is about to commit", about)
			go func() { ended <- second.Migrate(t.Context()) }()
			db := connect(t, dsn)
			eventually(t, "the second process waits for the first one", func() bool {
				return read[bool](t, db, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = $1 AND wait_event_type = 'Lock')", waits)
			})
			let()
			for range 2 {
				if err := receive(t, "both have migrated", ended); err != nil {
					t.Error(err)
				}
			}
		})
	}
}
