package gather

import (
	"errors"
	"fmt"
)

// The errors of this package. Package core has the errors of the lock.
var (
	// ErrUnknown says that the item may have been carried out. It comes together with the reason:
	// the error of the caller's context, [ErrPanicked], [ErrResults], core.ErrLost or core.ErrMaxHold. A
	// section returns such an error if it cannot know whether its effect has happened.
	ErrUnknown = errors.New("interlock: the item may have been carried out")

	// ErrPanicked says that the section panicked, or ended its goroutine. It comes with
	// [ErrUnknown]. The panic itself goes on in the caller that led.
	ErrPanicked = errors.New("interlock: the section of the batch panicked")

	// ErrResults says that a section returned another number of results, or of [Errors], than its
	// batch has items. It comes with [ErrUnknown]: the results fit no item.
	ErrResults = errors.New("interlock: the section returned a wrong number of results")
)

// Errors are the errors of a section by item, nil for an item that succeeded. A section returns them
// as its error. There is one for each item of the batch; else all items get [ErrResults]. The items
// without an error get their results.
type Errors []error

// Error returns the number of items that failed, and the first error.
func (e Errors) Error() string {
	var first error
	n := 0
	for _, err := range e {
		if err == nil {
			continue
		}
		if n++; n == 1 {
			first = err
		}
	}
	return fmt.Sprintf("interlock: %d of %d items failed; the first: %v", n, len(e), first)
}

// Unwrap returns the errors, for [errors.Is] and [errors.As].
func (e Errors) Unwrap() []error { return e }
