package driver_test

import (
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

func TestALettersPatienceIsWhatItsLockerNeeds(t *testing.T) {
	for need, want := range map[time.Duration]struct {
		entry string
		is    time.Duration
	}{
		0:                       {"x~a", 5 * time.Millisecond},
		5 * time.Millisecond:    {"x~a", 5 * time.Millisecond},
		6 * time.Millisecond:    {"x~b", 7 * time.Millisecond},
		32 * time.Millisecond:   {"x~g", 40 * time.Millisecond},
		999 * time.Millisecond:  {"x~q", time.Second},
		2500 * time.Millisecond: {"x~q", time.Second},
	} {
		entry := driver.WithPatience("x", need)
		name, patience := driver.CutPatience(entry)
		if entry != want.entry || name != "x" || patience != want.is || patience < min(need, time.Second) {
			t.Errorf("%v: %q, which is %q with %v; want %q with %v", need, entry, name, patience, want.entry, want.is)
		}
	}
}

func TestAnEntryWithoutALetterHasTheLeastPatience(t *testing.T) {
	for _, entry := range []string{"x", "+x", "x~", "x~1", "x~ab", ""} {
		if _, patience := driver.CutPatience(entry); patience != 5*time.Millisecond {
			t.Errorf("%q: %v", entry, patience)
		}
	}
}
