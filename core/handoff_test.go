package core_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
)

func TestTheTokenOfAHandOffIsTheLastOnePlusOneWhateverTheClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFake()
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
		if n := s.count("acquire"); n != 1 {
			t.Errorf("%d acquires, want hand-offs", n)
		}
	})
}

func TestTokensGrowWhenTheStoresClockIsSetBackAfterHandOffs(t *testing.T) {
	for name, after := range map[string]func(*testing.T, *fakeStore, *core.Lease){
		"released": func(t *testing.T, _ *fakeStore, lease *core.Lease) { release(t, lease) },
		"deleted": func(t *testing.T, s *fakeStore, lease *core.Lease) {
			s.remove("k")
			wantErr(t, lease.Release(t.Context()), core.ErrLost)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newFake()
				l, other := newLocker(t, s), newLocker(t, s)
				lease := held(t, l, t.Context(), "k")
				next := make(chan *core.Lease)
				go func() { next <- held(t, l, t.Context(), "k") }()
				time.Sleep(3 * time.Second)
				release(t, lease)
				lease = <-next
				s.setBack(2 * time.Second) // to a second after the acquire
				after(t, s, lease)
				later := held(t, other, t.Context(), "k")
				if later.Token() <= lease.Token() {
					t.Errorf("token %d after %d", later.Token(), lease.Token())
				}
				release(t, later)
			})
		})
	}
}
