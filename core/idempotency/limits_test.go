package idempotency_test

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/memstore"
)

// A store adds Retention and Tombstone, and Redis counts in milliseconds: a record with a
// time that overflows is gone at once, and every retry is carried out.
func TestATimeThatWouldOverflowIsRefused(t *testing.T) {
	for option, opts := range map[string][]idempotency.Option{
		"Retention":  {idempotency.Retention(math.MaxInt64)},
		"Lease":      {idempotency.Lease(math.MaxInt64), idempotency.Retention(math.MaxInt64)},
		"Tombstone":  {idempotency.Tombstone(math.MaxInt64)},
		"MaxHold":    {idempotency.MaxHold(math.MaxInt64)},
		"WaitReplay": {idempotency.WaitReplay(math.MaxInt64)},
	} {
		_, err := idempotency.New(memstore.New(), append(opts, idempotency.Global())...)
		if !errors.Is(err, core.ErrConfig) || !strings.Contains(err.Error(), option+"(") {
			t.Errorf("New with a %s of 292 years returns %v; want ErrConfig that names the option", option, err)
		}
	}
}
