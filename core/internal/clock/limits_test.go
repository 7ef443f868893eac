package clock_test

import (
	"math"
	"math/big"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/internal/clock"
)

func FuzzCeil(f *testing.F) {
	for _, d := range []int64{0, 1, -1, 999_999, 1_000_000, 1_000_001, math.MaxInt64, math.MinInt64} {
		f.Add(d)
	}
	f.Fuzz(func(t *testing.T, d int64) {
		n := big.NewInt(clock.Ceil(time.Duration(d), time.Millisecond))
		over := n.Mul(n, big.NewInt(1e6)).Sub(n, big.NewInt(d))
		if over.Sign() < 0 || over.Cmp(big.NewInt(1e6)) >= 0 {
			t.Errorf("%d ns rounded up to whole milliseconds are %v ns too many", d, over)
		}
	})
}

func TestTwoOfTheLongestTimesCanBeAdded(t *testing.T) {
	end := time.Now().Add(clock.LongestKept + clock.LongestKept)
	if end.UnixMicro() < 0 || end.UnixMicro() > 1<<53 { // Lua counts in doubles
		t.Errorf("two of the longest times end at %v; want a time that a double has in µs", end)
	}
}

func TestLimitsNamesWhatIsWrong(t *testing.T) {
	for _, c := range []struct {
		d, least time.Duration
		want     string
	}{
		{0, 0, ""},
		{1, 1, ""},
		{clock.LongestLease, 1, ""},
		{-1, 0, "must not be negative"},
		{0, 1, "must be positive"},
		{1, 2, "must be at least 2ns"},
		{clock.LongestLease + 1, 1, "must be at most 744h0m0s (31 days)"},
	} {
		if got := clock.Limits(c.d, c.least, clock.LongestLease); got != c.want {
			t.Errorf("Limits(%v, %v): %q; want %q", c.d, c.least, got, c.want)
		}
	}
}
