package core_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/memstore"
)

func TestAFixedLeaseThatExpiresIsLeftToTheStore(t *testing.T) {
	for name, store := range map[string]func(*notedStore) core.Store{
		"":                     func(s *notedStore) core.Store { return s },
		"acquired ambiguously": func(s *notedStore) core.Store { return ambiguous{s} },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStore()
				l, other := newLocker(t, store(s)), newLocker(t, s)
				begin := time.Now()
				lease := held(t, l, t.Context(), "k", core.TTL(20*time.Second))
				<-lease.Context().Done() // 202 ms before the server's end
				if d := time.Since(begin); d >= 20*time.Second {
					t.Errorf("its context ended after %v, too late", d)
				}
				type grant struct {
					by    string
					after time.Duration
				}
				grants := make(chan grant, 2)
				for by, l := range map[string]*core.Locker{"same process": l, "other process": other} {
					go func() {
						next := held(t, l, t.Context(), "k")
						g := grant{by, time.Since(begin)}
						release(t, next)
						grants <- g
					}()
				}
				for range 2 {
					if g := <-grants; g.after < 20*time.Second {
						t.Errorf("the %s got the lock after %v, while the first holder may still work", g.by, g.after)
					}
				}
				wantErr(t, lease.Release(t.Context()), core.ErrLost)
				if n := s.count(memstore.Release); name == "" && n != 2 {
					t.Errorf("%d releases, want those of the two that came later", n)
				}
			})
		})
	}
}

func TestAMaxHeldLeaseIsLeftToTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		l, other := newLocker(t, s), newLocker(t, s)
		begin := time.Now()
		lease := held(t, l, t.Context(), "k", core.Watchdog(20*time.Second), core.MaxHold(time.Second))
		<-lease.Context().Done()
		next := held(t, other, t.Context(), "k")
		if d := time.Since(begin); d < 20*time.Second {
			t.Errorf("another had the lock after %v of a lease of 20 s that nobody released", d)
		}
		wantErr(t, lease.Release(t.Context()), core.ErrMaxHold)
		release(t, next)
	})
}

func TestAFixedLeaseThatIsReleasedIsFreeAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		l := newLocker(t, s)
		lease := held(t, l, t.Context(), "k", core.TTL(20*time.Second))
		time.Sleep(19 * time.Second)
		release(t, lease)
		if h := s.holder("k"); h != "" {
			t.Errorf("%s still holds it", h)
		}
	})
}
