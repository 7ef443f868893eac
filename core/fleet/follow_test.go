package fleet_test

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/fleet"
	"github.com/interlock-go/interlock/core/memstore"
)

// blinking is a store that can be away for those who look.
type blinking struct {
	*memstore.Store
	away atomic.Bool
}

func (b *blinking) Look(ctx context.Context, key string) (driver.View, error) {
	if b.away.Load() {
		return driver.View{}, driver.ErrUnavailable
	}
	return b.Store.Look(ctx, key)
}

// A process that follows the lock of a leader gets each new leader once, and each failure once. A
// renewal, and another process that waits to lead, are no news.
func TestFollowYieldsEachNewHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &blinking{Store: memstore.New()}
		f, err := fleet.On(store)
		if err != nil {
			t.Fatal(err)
		}
		first, second := lockerOn(t, store), lockerOn(t, store)
		ctx, leave := context.WithCancel(t.Context())
		var news []string
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for lock, err := range f.Follow(ctx, "leader") {
				switch {
				case errors.Is(err, driver.ErrUnavailable):
					news = append(news, "away")
				case err != nil:
					news = append(news, err.Error())
				case lock.Free():
					news = append(news, "free")
				case slices.ContainsFunc(first.Held(), func(h core.Holding) bool { return h.Token == lock.Holders[0].Token }):
					news = append(news, "first")
				default:
					news = append(news, "second")
				}
			}
		}()
		pass := func() { time.Sleep(3 * time.Second); synctest.Wait() } // three looks at least
		pass()
		lease, err := first.Lock(t.Context(), "leader")
		if err != nil {
			t.Fatal(err)
		}
		led := make(chan error, 1)
		go func() {
			_, err := second.Lock(t.Context(), "leader")
			led <- err
		}()
		time.Sleep(time.Minute) // renewals, and a process that waits
		store.away.Store(true)
		pass()
		store.away.Store(false)
		pass()
		if err := lease.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := <-led; err != nil {
			t.Fatal(err)
		}
		pass()
		leave()
		<-ended
		if want := []string{"free", "first", "away", "second"}; !slices.Equal(news, want) {
			t.Errorf("Follow yields %q; want %q", news, want)
		}
	})
}

// A loop that ends takes its looks with it.
func TestFollowEndsWithItsLoop(t *testing.T) {
	store := &blinking{Store: memstore.New()}
	f, err := fleet.On(store)
	if err != nil {
		t.Fatal(err)
	}
	for lock, err := range f.Follow(t.Context(), "leader") {
		if err != nil || !lock.Free() {
			t.Fatalf("the first state is %+v, %v; want a free lock", lock, err)
		}
		break
	}
	store.away.Store(true)
	for _, err := range f.Follow(t.Context(), "leader") {
		if !errors.Is(err, driver.ErrUnavailable) {
			t.Fatalf("the failure of a look is %v; want %v", err, driver.ErrUnavailable)
		}
		break
	}
}
