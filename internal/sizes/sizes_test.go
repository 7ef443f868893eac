//go:build long

package main

import "testing"

// A count that grows over its bound needs a reason, and the bound changes with the change that has it.
// The comments have the aims where the bounds are not these.
func TestTheModuleStaysAsSmallAsItIs(t *testing.T) {
	c, err := count()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("\n%s", c)
	for _, b := range []struct {
		what     string
		is, most int
	}{
		{"shipping lines of code", c.Shipping, 32_400}, // 30,000
		{"shipping lines of code of nested modules", c.nested(), 15_200},
		{"lines of tests and support", c.Support, 75_000},
		{"structs with 15 and more fields", len(c.Wide), 14},
		{"fields of lock.acquisition", c.Acquisition, 8},
		{"percent of the calls in package lock that run back", int(c.backward()), 15},
		{"interfaces of core/driver", len(c.Interfaces), 5}, // with Lister, which was a part of package fleet
		{"lines of code of drivertest", c.Contract, 1100},
	} {
		if b.is == 0 || b.is > b.most {
			t.Errorf("%s: %d; want %d at most", b.what, b.is, b.most)
		}
	}
}
