//go:build integration && unix

package postgres_test

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/pgstore"
)

// claimed is what a claim has ended with.
type claimed struct {
	rep record.ClaimReply
	err error
}

// claim asks for a record, and waits for the outcome also when the time of the caller has
// ended.
func claim(tb testing.TB, s record.Store, ask record.ClaimRequest) (record.ClaimReply, error) {
	tb.Helper()
	if ask.Lease == 0 {
		ask.Lease = measured(tb).Holds()
	}
	if ask.Retention == 0 {
		ask.Retention = 2 * measured(tb).Holds()
	}
	if ask.Deadline.IsZero() {
		ask.Deadline = soon(tb)
	}
	late := make(chan claimed, 1)
	ask.Late = func(rep record.ClaimReply, err error) { late <- claimed{rep, err} }
	rep, err := s.Claim(tb.Context(), ask)
	if errors.Is(err, driver.ErrPending) {
		last := receive(tb, "the claim has an outcome", late)
		rep, err = last.rep, last.err
	}
	return rep, err
}

// TestAClaimThatFoundNoConnectionIsCertain has claims that were never sent. Nothing is to be
// cleaned up after them.
func TestAClaimThatFoundNoConnectionIsCertain(t *testing.T) {
	t.Parallel()
	_, dsn := tables(t)
	var refused atomic.Int64 // so many dials are refused
	w := &wire{dialing: func() error {
		if refused.Add(-1) >= 0 {
			return errors.New("refused")
		}
		return nil
	}}
	db := w.through(t, dsn)
	db.SetMaxOpenConns(1)
	db.SetMaxIdleConns(0) // each try dials
	brief := measured(t).Lapses()
	patient, hasty := newStore(t, db), newStore(t, db, pgstore.Timeout(brief))
	certain := func(what, id string, granted bool) {
		t.Helper()
		s, ask := patient, record.ClaimRequest{ID: id, Token: "o"}
		if !granted {
			s, ask.Deadline = hasty, time.Now().Add(2*brief)
		}
		rep, err := claim(t, s, ask)
		if granted != (err == nil && rep.State == record.StateGranted) || err != nil && !errors.Is(err, driver.ErrUnavailable) {
			t.Errorf("%s: %+v, %v", what, rep, err)
		}
		if rep.Ambiguous {
			t.Errorf("%s: the claim counts as perhaps sent", what)
		}
	}
	refused.Store(2)
	certain("the third dial succeeds", "third", true)
	refused.Store(1 << 30)
	certain("no dial succeeds", "none", false)
	refused.Store(0)
	conn, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	certain("the pool has no connection", "pool", false)
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
	certain("it has one again", "pool", true)
}
