//go:build integration && unix

package postgres_test

import (
	"bytes"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/pgstore"
)

// TestTheRoundTripsOfAPayment counts the writes of a request with a transaction to its
// connection.
func TestTheRoundTripsOfAPayment(t *testing.T) {
	t.Parallel()
	plain, dsn := tables(t)
	var trips atomic.Int64
	db := (&wire{sending: func(text []byte) error {
		switch {
		case bytes.Contains(text, []byte("-- ping")): // of pgx, after a second without work
		case bytes.Contains(text, []byte("pg_relation_size")): // of the store, once a second
		default:
			trips.Add(1)
		}
		return nil
	}}).through(t, dsn)
	db.SetMaxOpenConns(1)
	s := newService(t, plain, newStore(t, db), func(w http.ResponseWriter, r *http.Request, tx *pgstore.Transaction) {
		pay(t, r, tx)
		if strings.HasPrefix(r.Header.Get("Idempotency-Key"), "fails") {
			w.WriteHeader(http.StatusInternalServerError)
		}
		say(w, "answer")
	}, idempotency.Lease(measured(t).Holds()))
	s.want("first", 200, "answer") // it also connects
	for key, c := range map[string]struct {
		status int
		trips  int64 // the claim, BEGIN, the settings, the payment, and
	}{
		"paid": {200, 6}, // the answer, COMMIT
		// The look whether the handler has ended the transaction, ROLLBACK, the look whether the
		// connection only reads, and giving up the claim.
		"fails": {500, 8},
	} {
		trips.Store(0)
		s.want(key, c.status, "answer")
		if n := trips.Load(); n != c.trips {
			t.Errorf("%s: %d round trips; want %d", key, n, c.trips)
		}
	}
}
