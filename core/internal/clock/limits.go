package clock

import (
	"fmt"
	"time"
)

// The longest durations that options take. Every store counts in them without an overflow, in
// milliseconds or microseconds since 1970, also where it adds two of them to the present time.
const (
	LongestLease = 31 * day  // of leases, and of tries of a request
	LongestTime  = 366 * day // of waits, holds and pauses
	LongestKept  = 36500 * day

	day = 24 * time.Hour
)

// Limits describes the fault of a duration given to an option; it returns an empty text if
// the duration is within its limits. least is 0 for an option that takes no negative value,
// and 1 for an option that takes positive values only.
func Limits(d, least, most time.Duration) string {
	switch {
	case d > most:
		return fmt.Sprintf("must be at most %v (%d days)", most, most/day)
	case d >= least:
		return ""
	case least == 0:
		return "must not be negative"
	case least == 1:
		return "must be positive"
	}
	return fmt.Sprintf("must be at least %v", least)
}
