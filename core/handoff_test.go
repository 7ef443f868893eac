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
