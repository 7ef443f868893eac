//go:build integration

package rediswire

import (
	"testing"

	"github.com/interlock-go/interlock/core/driver"
)

// The proposal of an owner may come to its node after the release.
func TestAWithdrawalKeepsEarlierProposalsOut(t *testing.T) {
	v := newVoter(t)
	// Of nothing.
	wantErr(t, v.withdraw(Withdrawal{Owner: "a", Token: 1000}), driver.ErrNotOwner)
	if vote := v.vote("a", 1000); vote.Granted || vote.Holder != "" || vote.Token != 1000 {
		t.Errorf("the proposal that was withdrawn: %+v", vote)
	}
	wantErr(t, v.withdraw(Withdrawal{Owner: "a", Token: 900}), driver.ErrNotOwner)
	wantErr(t, v.withdraw(Withdrawal{Owner: "a"}), driver.ErrNotOwner)
	if vote := v.vote("b", 1000); vote.Granted {
		t.Errorf("lower withdrawals have lowered the fence: %+v", vote)
	}
	// While another owner holds the lock, and releases it later.
	if vote := v.vote("b", 1001); !vote.Granted {
		t.Fatalf("a new proposal: %+v", vote)
	}
	far := int64(1) << 52
	wantErr(t, v.withdraw(Withdrawal{Owner: "a", Token: far}), driver.ErrNotOwner)
	wantErr(t, v.withdraw(Withdrawal{Owner: "b", Token: 1002}), nil)
	if vote := v.vote("a", far); vote.Granted || vote.Token != far {
		t.Errorf("the release of another owner has let it in again: %+v", vote)
	}
	if vote := v.vote("c", far+1); !vote.Granted {
		t.Errorf("the next: %+v", vote)
	}
	if ttl := v.rdb.PTTL(t.Context(), v.lock("k")+fenceSuffix).Val(); ttl <= 0 {
		t.Errorf("the fence ends in %v", ttl)
	}
}

// A holder that counts on from its token is not taken to have said its last one.
func TestAWithdrawalOfAnotherOwnerLetsTheFenceCountOn(t *testing.T) {
	v := newVoter(t)
	v.vote("a", 1000)
	before := v.rdb.Get(t.Context(), v.lock("k")+fenceSuffix).Val()
	wantErr(t, v.withdraw(Withdrawal{Owner: "b", Token: 1000}), driver.ErrNotOwner)
	if after := v.rdb.Get(t.Context(), v.lock("k")+fenceSuffix).Val(); after != before {
		t.Errorf("the fence was %q and is %q", before, after)
	}
	// Also if the withdrawal is of more than the holder can have given out by now.
	far := int64(1) << 52
	wantErr(t, v.withdraw(Withdrawal{Owner: "b", Token: far}), driver.ErrNotOwner)
	v.rdb.Del(t.Context(), v.lock("k")) // as if the lease of a had ended
	if vote := v.vote("c", far+1); vote.Granted || vote.Token <= far+1 {
		t.Errorf("it may have given out %d by now: %+v", far+1, vote)
	}
}
