package steptrial_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/internal/steptrial"
)

// TestKilledOrdersAreCarriedToTheirEnd has 2,000 orders with a handler, and 2,000 through a hand-over.
func TestKilledOrdersAreCarriedToTheirEnd(t *testing.T) {
	for name, handOver := range map[string]bool{"handler": false, "hand-over": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := steptrial.Trial{Store: memstore.New(), Orders: 2000, AtOnce: 20, Lease: 30 * time.Second, HandOver: handOver, Seed: 1}.Run(t.Context())
				r.Check(t)
			})
		})
	}
}

// The control: without steps the hotel books rooms twice.
func TestKilledOrdersWithoutStepsBookTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := steptrial.Trial{Store: memstore.New(), Orders: 2000, AtOnce: 20, Lease: 30 * time.Second, Plain: true, Seed: 1}.Run(t.Context())
		t.Log(r)
		if r.BookedTwice < 100 || r.Kills < 1000 {
			t.Errorf("%v; want rooms that are booked twice", r)
		}
	})
}
