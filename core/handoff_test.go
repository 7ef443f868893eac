package core_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/memstore"
)

func TestTheTokenOfAHandOffIsTheLastOnePlusOneWhateverTheClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		l := newLocker(t, s, core.Watchdog(30*time.Second))
		lease := held(t, l, t.Context(), "k")
		for range 3 {
			next := make(chan *core.Lease)
			go func() { next <- held(t, l, t.Context(), "k") }()
			time.Sleep(3 * time.Second)
			release(t, lease)
			token := lease.Token()
			lease = <-next
			if lease.Token() != token+1 {
				t.Errorf("token %d after %d, want one more", lease.Token(), token)
			}
		}
		release(t, lease)
		if n := s.count(memstore.Acquire); n != 1 {
			t.Errorf("%d acquires, want hand-offs", n)
		}
	})
}

// The release tells the store which token was given out last. The clock stands still here,
// as if the store's clock had been set back after the hand-off.
func TestTokensGrowWhenTheStoresClockIsSetBackAfterHandOffs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		l, other := newLocker(t, s), newLocker(t, s)
		lease := held(t, l, t.Context(), "k")
		next := make(chan *core.Lease)
		go func() { next <- held(t, l, t.Context(), "k") }()
		synctest.Wait()
		release(t, lease)
		lease = <-next
		release(t, lease)
		later := held(t, other, t.Context(), "k")
		if later.Token() <= lease.Token() {
			t.Errorf("token %d after %d", later.Token(), lease.Token())
		}
		release(t, later)
	})
}
