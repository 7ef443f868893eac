package pace

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestTimesGrowWithTheRoundTrip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near := Of(t, func() error { return nil })
		far := Of(t, func() error { time.Sleep(100 * time.Millisecond); return nil })
		if near.Lapses() != 250*time.Millisecond || near.Holds() != time.Minute || near.Patience() != 30*time.Second {
			t.Errorf("near: %v %v %v", near.Lapses(), near.Holds(), near.Patience())
		}
		if far.Lapses() != 50*time.Second || far.Holds() <= far.Patience() || far.Patience() <= far.Lapses() {
			t.Errorf("far: %v %v %v", far.Lapses(), far.Holds(), far.Patience())
		}
	})
}

func TestAMomentInWhichTheMachineStoodStillDoesNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		p := Of(t, func() error {
			if asked++; asked < 3 {
				time.Sleep(3 * time.Second)
			}
			return nil
		})
		if p.RoundTrip != 0 {
			t.Errorf("a round trip of %v", p.RoundTrip)
		}
	})
}
