//go:build integration && unix

package postgres_test

import (
	"net/http"
	"testing"

	"github.com/interlock-go/interlock/core/pgstore"
)

// TestACommitWhoseReplyIsLost cuts the connection around the first commit of a request.
func TestACommitWhoseReplyIsLost(t *testing.T) {
	for name, c := range map[string]struct {
		on    func(cut func([]byte) error) *wire
		first int // the status
		paid  int // after the first answer
	}{
		"not sent":            {func(cut func([]byte) error) *wire { return &wire{sending: cut} }, 503, 0},
		"executed, not heard": {func(cut func([]byte) error) *wire { return &wire{answered: cut} }, 200, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, dsn := tables(t)
			cut, arm, met := breaking(commit)
			store := newStore(t, c.on(cut).through(t, dsn))
			s := newService(t, db, store, func(w http.ResponseWriter, r *http.Request, tx *pgstore.Transaction) {
				pay(t, r, tx)
				say(w, "paid")
			})
			arm()
			s.want("a", c.first, "")
			s.paid(c.paid)
			if !met() {
				t.Error("no commit was cut")
			}
			s.want("a", 200, "paid")
			s.paid(1)
		})
	}
}
