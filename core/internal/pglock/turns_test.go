package pglock

import (
	"testing"
	"testing/synctest"
	"time"

	_ "github.com/interlock-go/interlock/internal/bubble"
)

// Patience is for three round trips. A locker that looks for releases, or gets their
// announcements late, needs more than the way to the server.
func TestTheRoundTripHasWhatPassesUntilAReleaseIsNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const near, far = 300 * time.Microsecond, 60 * time.Millisecond
		var proof string
		s := New(nil, Config{Listen: quiet{}, Announce: func(message string) { proof = message }})
		is := func(when string, want time.Duration) {
			t.Helper()
			if got := s.RoundTrip(); got != want {
				t.Errorf("%s: %v; want %v", when, got, want)
			}
		}
		is("without an answer", lookLatest/3)
		s.trips.Note(near)
		is("looking", near+lookLatest/3)
		s.calls.listens(true)
		is("not known to hear", near+lookLatest/3)
		time.Sleep(4 * time.Millisecond)
		s.calls.hear(proof)
		is("hearing", 4*time.Millisecond)
		s.calls.listens(false)
		is("deaf", near+lookLatest/3)
		for range 64 {
			s.trips.Note(far)
		}
		is("far, where a look takes its time", far+4*far/3)
	})
}
