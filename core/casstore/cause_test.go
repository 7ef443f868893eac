package casstore

import (
	"errors"
	"testing"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/observe"
)

// Logs have the root cause of an error: the bare error of package driver tells an operator
// nothing.
func TestTheRootCauseSaysWhy(t *testing.T) {
	for _, err := range []error{errClosed, errReleased, errNoTime} {
		root := observe.RootCause(err)
		for _, bare := range []error{driver.ErrUnavailable, driver.ErrNotReady, driver.ErrPending} {
			if errors.Is(root, bare) {
				t.Errorf("the root cause of %v is %v", err, root)
			}
		}
	}
}
