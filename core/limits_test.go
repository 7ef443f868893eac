package core_test

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/interlock-go/interlock/core"
)

// Stores add times and convert them to smaller units. A time that overflows there ends a lock
// at once, and nobody notices.
func TestATimeThatWouldOverflowIsRefused(t *testing.T) {
	for option, opt := range map[string]core.LockerOption{
		"Wait": core.Wait(math.MaxInt64), "TTL": core.TTL(math.MaxInt64), "Watchdog": core.Watchdog(math.MaxInt64),
		"MaxHold": core.MaxHold(math.MaxInt64), "Turn": core.Turn(math.MaxInt64, 1), "NestedWait": core.NestedWait(math.MaxInt64),
	} {
		if _, err := core.New(newStore(), opt); !errors.Is(err, core.ErrConfig) || !strings.Contains(err.Error(), option+"(") {
			t.Errorf("New with a %s of 292 years returns %v; want ErrConfig that names the option", option, err)
		}
	}
}
