//go:build integration && long

package redisstore_test

import (
	"testing"
	"time"

	"github.com/interlock-go/interlock/internal/steptrial"
)

// TestKilledOrdersAreCarriedToTheirEnd kills the clients of the store, as package steptrial does it in fake
// time.
func TestKilledOrdersAreCarriedToTheirEnd(t *testing.T) {
	for name, handOver := range map[string]bool{"handler": false, "hand-over": true} {
		t.Run(name, func(t *testing.T) {
			store := common(t).store()
			steptrial.Trial{Store: store, Orders: 2000, AtOnce: 64, Lease: time.Second, HandOver: handOver, Seed: 1}.Run(t.Context()).Check(t)
		})
	}
	r := steptrial.Trial{Store: common(t).store(), Orders: 2000, AtOnce: 64, Lease: time.Second, Plain: true, Seed: 1}.Run(t.Context())
	if t.Log(r); r.BookedTwice == 0 {
		t.Error("without steps no room was booked twice")
	}
}
