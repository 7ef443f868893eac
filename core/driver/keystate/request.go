package keystate

import (
	"fmt"
	"unicode/utf8"

	"github.com/interlock-go/interlock/core/driver"
)

// Check returns an error that matches [driver.ErrConfig] for a request that makes no sense, or has a name
// that the text of a record cannot have.
func Check(req *driver.AcquireRequest) error {
	switch {
	case req.Kind > driver.Permit:
		return fmt.Errorf("%w: unknown Kind %d", driver.ErrConfig, req.Kind)
	case req.Kind == driver.Permit && req.AtMost < 1:
		return fmt.Errorf("%w: AtMost is %d: at least 1 owner must be allowed a permit", driver.ErrConfig, req.AtMost)
	case !utf8.ValidString(req.Owner + "," + string(req.Waiter) + "," + req.From):
		return fmt.Errorf("%w: owner %q, waiting locker %q, former owner %q: names are valid UTF-8", driver.ErrConfig, req.Owner, req.Waiter, req.From)
	}
	return nil
}
