//go:build long

package main

import (
	"errors"
	"math"
	"testing"
	"time"
)

// TestTheModelHoldsOnARealServer demands what does not depend on how busy the machine is,
// and of the rest that it is of the right order.
func TestTheModelHoldsOnARealServer(t *testing.T) {
	var tab table
	c := calibration{ctx: t.Context(), table: &tab, warm: 3 * time.Second, window: 3 * time.Second}
	err := c.on(0, 0, func(c *calibration) error {
		return errors.Join(c.cells(workload{processes: 2, callers: 1}), c.records())
	})
	if err != nil {
		t.Fatal(err)
	}
	compared := 0
	for _, r := range tab.rows {
		if math.IsNaN(r.model) {
			continue
		}
		compared++
		if r.tolerance > exactly {
			r.tolerance = 2
		}
		if r.off() || r.model > 0 && r.measured <= 0 {
			t.Errorf("%s: %s is %s by the model and %s measured", r.workload, r.what, number(r.model), number(r.measured))
		}
	}
	if compared < 2 {
		t.Errorf("only %d rows were compared", compared)
	}
}
