package casstore_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/casstore/castest"
)

// A process that ends before the lease of a dead holder has passed cannot know that it is dead,
// and neither can the next one. The error tells how long to wait.
func TestARefusalOfAStrangerSaysHowLongToWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := castest.NewMemory()
		a := start(t, server)
		a.lock(t, "k")
		a.cut.Store(true) // it has died
		time.Sleep(10 * lease)
		for range 3 {
			b := start(t, server)
			_, err := b.TryLock(t.Context(), "k")
			if !errors.Is(err, core.ErrHeld) || !strings.Contains(err.Error(), "waits for 30.") {
				t.Errorf("TryLock of a new process: %v; want ErrHeld, and for how long to wait", err)
			}
		}
		b := start(t, server)
		begin := time.Now()
		if _, err := b.Lock(t.Context(), "k", core.Wait(lease+2*time.Second)); err != nil {
			t.Errorf("Lock with a wait of a lease and 2 s: %v after %v; want the lock", err, time.Since(begin))
		}
	})
}

func TestARefusalByALivingHolderSaysNothingOfDeath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := castest.NewMemory()
		start(t, server).lock(t, "k")
		b := start(t, server)
		_, err := b.Lock(t.Context(), "k", core.Wait(lease+time.Second)) // the holder renews meanwhile
		if !errors.Is(err, core.ErrHeld) || strings.Contains(err.Error(), "sign of life") {
			t.Errorf("%v; want ErrHeld alone", err)
		}
	})
}
