//go:build integration

package rediswire

import (
	"testing"
	"time"
)

func TestALockIsKeptForTheLockersForWhichItWasReservedAndNotForThoseThatCameSince(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		q        string
		reserved time.Duration
		want     int
	}{
		{"", time.Second, 0},
		{"a~q", time.Second, 1},
		{"a~q,b~q", 2 * time.Second, 2},
		{"a~q,b~q", time.Second, 1}, // b came since
		{"a~a,+b~c,c~a", 20 * time.Millisecond, 3},
		{"a~q,b,c~q", 2 * time.Second, 1}, // a release stops at an entry without patience
		{"a~q,b~q,c~q,d~q,e~q", 4 * time.Second, 4},
	} {
		if n := keptFor(c.q, c.reserved); n != c.want {
			t.Errorf("%q, reserved for %v: kept for %d lockers, want %d", c.q, c.reserved, n, c.want)
		}
	}
}

// Between the look and the script a process may have been granted the lock.
func TestAnOperatorFreesNoLockThatHasBeenGrantedSinceHeLooked(t *testing.T) {
	t.Parallel()
	s := common(t)
	srv := s.requests.single
	for state, c := range map[string]struct {
		fields []any
		fence  string
		freed  bool
	}{
		"kept":                     {[]any{"r", 1000, "q", "a~q"}, "5", true},
		"kept after another grant": {[]any{"r", 1000, "q", "a~q"}, "6", false},
		"held":                     {[]any{"a:1", 5, "q", "b~q"}, "5", false},
		"offered":                  {[]any{"r", 3000, "q", "a~Q", "offer", "a:5"}, "5", false},
		"free":                     {nil, "5", false},
	} {
		t.Run(state, func(t *testing.T) {
			name := s.LockName(state)
			if c.fields != nil {
				if err := srv.HSet(t.Context(), name, c.fields...).Err(); err != nil {
					t.Fatal(err)
				}
			}
			if err := srv.Set(t.Context(), fenceOf(name), c.fence, time.Hour).Err(); err != nil {
				t.Fatal(err)
			}
			if freed, err := s.Unkeep(t.Context(), state, 5); err != nil || freed != c.freed {
				t.Errorf("freed is %v, %v; want %v", freed, err, c.freed)
			}
			left := srv.Exists(t.Context(), name).Val()
			if stays := c.fields != nil && !c.freed; stays != (left == 1) {
				t.Errorf("%d keys are left of the lock", left)
			}
		})
	}
}
