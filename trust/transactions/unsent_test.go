//go:build long

package transactions

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/pgstore"
	"github.com/interlock-go/interlock/trust/internal/pgtest"
)

// TestAClaimThatFoundNoConnectionIsCertain has claims that were never sent. Nothing is to be
// cleaned up after them.
func TestAClaimThatFoundNoConnectionIsCertain(t *testing.T) {
	config, err := pgx.ParseConfig(pgtest.DSN(t))
	if err != nil {
		t.Fatal(err)
	}
	var refused atomic.Int64 // so many dials are refused
	config.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if refused.Add(-1) >= 0 {
			return nil, errors.New("refused")
		}
		return new(net.Dialer).DialContext(ctx, network, addr)
	}
	db := stdlib.OpenDB(*config)
	t.Cleanup(func() { _ = db.Close() })
	db.SetMaxOpenConns(1)
	db.SetMaxIdleConns(0) // each try dials
	s := on(t, db, pgstore.Timeout(2*time.Second), pgstore.SweepEvery(-1))
	claim := func(id string, within time.Duration) (record.ClaimReply, error) {
		type outcome struct {
			rep record.ClaimReply
			err error
		}
		late := make(chan outcome, 1)
		rep, err := s.Claim(t.Context(), record.ClaimRequest{
			ID: id, Token: "o", Lease: time.Minute, Retention: time.Hour,
			Deadline: time.Now().Add(within), Late: func(rep record.ClaimReply, err error) { late <- outcome{rep, err} },
		})
		if errors.Is(err, driver.ErrPending) { // the last try ends with the time of its caller
			last := <-late
			rep, err = last.rep, last.err
		}
		return rep, err
	}
	certain := func(what, id string, granted bool) {
		t.Helper()
		within := 3 * time.Second // which pass where no connection is to be had
		if granted {
			within = time.Minute
		}
		rep, err := claim(id, within)
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
