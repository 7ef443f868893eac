package fleet_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/fleet"
	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/memstore"
)

func TestUnknownOutcomesAreCountedWithoutARetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, store, _ := stored(t)
		claim := func(id string, strict bool) {
			t.Helper()
			rep, err := store.Claim(t.Context(), record.ClaimRequest{
				ID: id, Token: id, Lease: time.Minute, Retention: time.Hour, Strict: strict,
			})
			if err != nil || rep.State != record.StateGranted {
				t.Fatalf("claimed %s: %v, %v", id, rep.State, err)
			}
		}
		want := func(want int) {
			t.Helper()
			if n, err := f.Unknown(t.Context()); n != want || err != nil {
				t.Errorf("counted %d unknown outcomes, want %d; error %v", n, want, err)
			}
		}
		claim("dead before its effect", false)
		claim("dead after its effect", true)
		claim("also dead", true)
		claim("answered", true)
		if _, err := store.Commit(t.Context(), record.CommitRequest{ID: "answered", Token: "answered", Response: []byte("done"), Retention: time.Hour}); err != nil {
			t.Fatal(err)
		}
		want(0) // all are in flight or answered
		store.LapseClaims()
		claim("in flight", true)
		want(2)
		if err := store.Resolve(t.Context(), record.ResolveRequest{ID: "also dead", Token: "operator", Retention: time.Hour}); err != nil {
			t.Fatal(err)
		}
		want(1)
		for i := range 1001 {
			claim(fmt.Sprint(i), true)
		}
		store.LapseClaims()
		want(1000)

		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := f.Unknown(ctx)
		wantErr(t, err, context.Canceled)
	})
}

// locksOnly is a store that keeps no records.
type locksOnly struct {
	driver.Store
	driver.Lister
}

func TestAStoreWithoutRecordsSaysThatItCountsNone(t *testing.T) {
	store := memstore.New()
	f, err := fleet.On(locksOnly{store, store})
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.Unknown(t.Context())
	wantErr(t, err, fleet.ErrNotServed)
	_, err = f.Record(t.Context(), "p", "k")
	wantErr(t, err, fleet.ErrNotServed)
}
