package core_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/core/observe"
)

// Logs have the root cause of an error, since what wraps it names the key. A root cause that is
// the bare error of the situation tells an operator nothing.
func TestTheRootCauseSaysWhy(t *testing.T) {
	slow := func(op memstore.Op, f memstore.Fault) func(memstore.Request) memstore.Fault {
		return func(r memstore.Request) memstore.Fault {
			if r.Op == op {
				return f
			}
			return memstore.Fault{}
		}
	}
	for want, provoke := range map[string]func(t *testing.T, s *notedStore, l *core.Locker) error{
		"no answer within the wait": func(t *testing.T, s *notedStore, l *core.Locker) error {
			s.Intercept(slow(memstore.Acquire, memstore.Delay(3*time.Second)))
			_, err := l.Lock(t.Context(), "k", core.Wait(time.Second))
			return err
		},
		"a grant came after the end of its lease": func(t *testing.T, s *notedStore, l *core.Locker) error {
			s.Intercept(slow(memstore.Acquire, memstore.Fault{After: time.Second}))
			_, err := l.Lock(t.Context(), "k", core.Watchdog(500*time.Millisecond), core.Wait(1001*time.Millisecond))
			return err
		},
		"no answer to the release of this process": func(t *testing.T, s *notedStore, l *core.Locker) error {
			lease := held(t, l, t.Context(), "k")
			s.Intercept(slow(memstore.Release, memstore.Delay(500*time.Millisecond)))
			go lease.Release(t.Context())
			synctest.Wait()
			_, err := l.TryLock(t.Context(), "k")
			return err
		},
		"the machine was suspended": func(t *testing.T, s *notedStore, l *core.Locker) error {
			lease := held(t, l, t.Context(), "k")
			s.Intercept(slow(memstore.Renew, memstore.Delay(time.Second)))
			core.SetWall(l, func() time.Time { return time.Now().Add(10 * time.Minute) })
			defer func() { core.SetWall(l, nil); release(t, lease) }()
			return lease.Err()
		},
	} {
		t.Run(want, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStore()
				l := newLocker(t, s)
				err := provoke(t, s, l)
				if err == nil || !strings.Contains(observe.RootCause(err).Error(), want) {
					t.Errorf("the root cause of %v is %v", err, observe.RootCause(err))
				}
				s.Intercept(nil)
				time.Sleep(time.Minute)
			})
		})
	}
}
