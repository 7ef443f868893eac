package fencing

import (
	"fmt"

	"github.com/interlock-go/interlock/core"
)

// ErrStale says that the resource has seen a larger token: somebody else has had
// the lock since. It matches core.ErrLost, for it proves just that. What is
// returned is a *StaleError.
var ErrStale = fmt.Errorf("%w: stale fencing token", core.ErrLost)

// StaleError is a claim or a write that was refused. It matches ErrStale.
type StaleError struct {
	// Key is what was to be claimed: a lock's key, a row's, or a Redis key.
	Key string
	// Token is the one that was shown.
	Token int64
	// Latest is the greatest that the resource has seen; 0 if it has none any
	// more, since its data was lost after the claim.
	Latest int64
}

func (e *StaleError) Error() string {
	return fmt.Sprintf("%v %d for %q, the latest is %d", ErrStale, e.Token, e.Key, e.Latest)
}

// Unwrap returns ErrStale.
func (e *StaleError) Unwrap() error { return ErrStale }

// CheckToken reports whether a token can be one. Zero is what a lease answers for
// a key that it does not hold, and would be refused only by who has seen another.
func CheckToken(key string, token int64) error {
	if token < 1 {
		return fmt.Errorf("%w: %d is no fencing token for %q", core.ErrConfig, token, key)
	}
	return nil
}
