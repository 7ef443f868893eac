// Package bubble is for packages with tests in bubbles of testing/synctest. They import it
// for its effect, as
//
//	import _ "github.com/interlock-go/interlock/internal/bubble"
//
// Before Go 1.27, all timers of a bubble share one context of the race detector. Two
// goroutines that look at once at timers that are due crash the detector
// (golang/go#78156, "ThreadSanitizer: CHECK failed"). With one processor no two are
// at it at once, so the package sets GOMAXPROCS to 1 where the detector is on and Go
// is that old. The detector still compares the accesses of goroutines: it goes by
// the order of synchronization, not by actual parallelism. Without the detector the
// tests have all processors.
package bubble
