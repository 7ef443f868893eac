package casstore

import (
	"testing"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/observe"
)

// Logs have the root cause of an error: the bare error of package driver tells an operator
// nothing.
func TestTheRootCauseSaysWhy(t *testing.T) {
	for _, err := range []error{errClosed, errReleased, errNoTime, errNoAnswer} {
		switch root := observe.RootCause(err); root {
		case driver.ErrUnavailable, driver.ErrNotReady, driver.ErrPending:
			t.Errorf("the root cause of %v is %v", err, root)
		}
	}
}
