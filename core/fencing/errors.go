package fencing

import (
	"fmt"

	"github.com/interlock-go/interlock/core"
)

// ErrStale says that the resource has seen a larger token: another holder has had
// the lock since. It matches [core.ErrLost], because it proves a loss. The error
// that a claim or a write returns is a [*StaleError].
var ErrStale = fmt.Errorf("%w: stale fencing token", core.ErrLost)

// StaleError is the error of a claim or a write that was refused. It matches
// [ErrStale].
type StaleError struct {
	// Key is the key that was to be claimed: of a lock, of a row, or a Redis key.
	Key string
	// Token is the token of the refused claim or write.
	Token int64
	// Latest is the greatest token that the resource has seen. It is 0 if the
	// resource has none any more, because its data was lost after the claim.
	Latest int64
}

// Error names the key and both tokens.
func (e *StaleError) Error() string {
	return fmt.Sprintf("%v %d for %q, the latest is %d", ErrStale, e.Token, e.Key, e.Latest)
}

// Unwrap returns ErrStale.
func (e *StaleError) Unwrap() error { return ErrStale }

// CheckToken returns an error that matches [core.ErrConfig] if token cannot be a
// fencing token: tokens are at least 1. Zero is what a lease answers for a key that
// it does not hold. A resource that has seen no other token would accept it.
func CheckToken(key string, token int64) error {
	if token < 1 {
		return fmt.Errorf("%w: %d is no fencing token for %q", core.ErrConfig, token, key)
	}
	return nil
}
