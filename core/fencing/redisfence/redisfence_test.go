//go:build integration

package redisfence_test

import (
	"context"
	"errors"
	"maps"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/fencing"
	"github.com/interlock-go/interlock/core/fencing/redisfence"
	"github.com/interlock-go/interlock/internal/redistest"
)

type fields = map[string]string

// open returns values of a server that the test has for itself.
func open(t *testing.T) (*redisfence.Values, *redis.Client) {
	t.Helper()
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	return redisfence.New(rdb), rdb
}

func hold(key string, token int64) redisfence.Hold { return redisfence.Hold{Key: key, Token: token} }

func change(key string, token int64, set fields) redisfence.Change {
	return redisfence.Change{Hold: hold(key, token), Set: set}
}

func wantStale(t *testing.T, err error, want fencing.StaleError) {
	t.Helper()
	var stale *fencing.StaleError
	if !errors.As(err, &stale) || *stale != want {
		t.Errorf("%v, want %v", err, &want)
	}
}

func wantValue(t *testing.T, rdb redis.UniversalClient, key string, want fields) {
	t.Helper()
	if got, err := rdb.HGetAll(t.Context(), key).Result(); err != nil || !maps.Equal(got, want) {
		t.Errorf("%s is %v (%v), want %v", key, got, err, want)
	}
}

func TestOnlyTheLatestTokenClaimsAndWrites(t *testing.T) {
	v, rdb := open(t)
	if read, err := v.Claim(t.Context(), hold("k", 5)); err != nil || len(read) != 1 || len(read[0]) != 0 {
		t.Fatalf("first claim: %v, %v", read, err)
	}
	if err := v.Write(t.Context(), change("k", 5, fields{"a": "1", "b": "\x00\xff"})); err != nil {
		t.Fatal(err)
	}
	// Its own holder may come again, and another field stays the same.
	if read, err := v.Claim(t.Context(), hold("k", 5)); err != nil || !maps.Equal(read[0], fields{"a": "1", "b": "\x00\xff"}) {
		t.Errorf("claim again: %q, %v", read, err)
	}
	if err := v.Write(t.Context(), change("k", 5, fields{"a": "2"})); err != nil {
		t.Error(err)
	}
	if _, err := v.Claim(t.Context(), hold("k", 7)); err != nil {
		t.Error(err)
	}

	_, err := v.Claim(t.Context(), hold("k", 6))
	wantStale(t, err, fencing.StaleError{Key: "k", Token: 6, Latest: 7})
	wantStale(t, v.Write(t.Context(), change("k", 5, fields{"a": "late"})), fencing.StaleError{Key: "k", Token: 5, Latest: 7})
	wantStale(t, v.Set(t.Context(), change("k", 6, fields{"a": "late"})), fencing.StaleError{Key: "k", Token: 6, Latest: 7})
	// A larger one has not claimed, and so has not read.
	wantStale(t, v.Write(t.Context(), change("k", 8, fields{"a": "early"})), fencing.StaleError{Key: "k", Token: 8, Latest: 7})
	wantValue(t, rdb, "k", fields{"a": "2", "b": "\x00\xff", "fence": "7"})
	if err := v.Set(t.Context(), change("k", 8, fields{"a": "3"})); err != nil {
		t.Error(err)
	}
	wantValue(t, rdb, "k", fields{"a": "3", "b": "\x00\xff", "fence": "8"})
}

// Tokens of a consensus system have up to 19 digits, more than a double has.
func TestTokensThatNoDoubleTellsApart(t *testing.T) {
	v, rdb := open(t)
	const big = int64(1)<<62 + 1
	if _, err := v.Claim(t.Context(), hold("k", big)); err != nil {
		t.Fatal(err)
	}
	_, err := v.Claim(t.Context(), hold("k", big-1))
	wantStale(t, err, fencing.StaleError{Key: "k", Token: big - 1, Latest: big})
	wantStale(t, v.Set(t.Context(), change("k", big-1, fields{"a": "late"})), fencing.StaleError{Key: "k", Token: big - 1, Latest: big})
	_, err = v.Claim(t.Context(), hold("k", 999))
	wantStale(t, err, fencing.StaleError{Key: "k", Token: 999, Latest: big})
	if err := v.Write(t.Context(), change("k", big, fields{"a": "1"})); err != nil {
		t.Error(err)
	}
	wantValue(t, rdb, "k", fields{"a": "1", "fence": "4611686018427387905"})
}

func TestOfSeveralValuesAllAreClaimedAndWrittenOrNone(t *testing.T) {
	v, rdb := open(t)
	if err := v.Set(t.Context(), change("a", 10, fields{"n": "1"}), change("b", 20, fields{"n": "2", "m": "0"})); err != nil {
		t.Fatal(err)
	}
	_, err := v.Claim(t.Context(), hold("a", 11), hold("b", 19))
	wantStale(t, err, fencing.StaleError{Key: "b", Token: 19, Latest: 20})
	err = v.Set(t.Context(), change("a", 11, fields{"n": "9"}), change("b", 19, fields{"n": "9"}))
	wantStale(t, err, fencing.StaleError{Key: "b", Token: 19, Latest: 20})
	err = v.Write(t.Context(), change("a", 10, fields{"n": "9"}), change("b", 19, nil))
	wantStale(t, err, fencing.StaleError{Key: "b", Token: 19, Latest: 20})
	wantValue(t, rdb, "a", fields{"n": "1", "fence": "10"})
	wantValue(t, rdb, "b", fields{"n": "2", "m": "0", "fence": "20"})

	read, err := v.Claim(t.Context(), hold("b", 21), hold("a", 11))
	if err != nil || !maps.Equal(read[0], fields{"n": "2", "m": "0"}) || !maps.Equal(read[1], fields{"n": "1"}) {
		t.Fatalf("%v, %v", read, err)
	}
	if err := v.Write(t.Context(), change("b", 21, fields{"n": "3"}), change("a", 11, fields{"n": "0", "o": "1"})); err != nil {
		t.Fatal(err)
	}
	wantValue(t, rdb, "a", fields{"n": "0", "o": "1", "fence": "11"})
	wantValue(t, rdb, "b", fields{"n": "3", "m": "0", "fence": "21"})
}

// A holder that was paused between its read and its write wakes up when its
// successor has read and not yet written.
func TestAHolderThatWakesBehindItsSuccessorsRead(t *testing.T) {
	for name, c := range map[string]struct {
		read  func(*redisfence.Values, redisfence.Hold) error
		write func(*redisfence.Values, redisfence.Change) error
		lost  bool // the update of a holder that got no error
	}{
		"claimed when read": {
			func(v *redisfence.Values, h redisfence.Hold) error { _, err := v.Claim(t.Context(), h); return err },
			func(v *redisfence.Values, c redisfence.Change) error { return v.Write(t.Context(), c) },
			false,
		},
		// The wrong way shows the purpose of the claim.
		"checked when written": {
			func(*redisfence.Values, redisfence.Hold) error { return nil }, // reads, and writes nothing
			func(v *redisfence.Values, c redisfence.Change) error { return v.Set(t.Context(), c) },
			true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			v, rdb := open(t)
			if err := v.Set(t.Context(), change("k", 1, fields{"n": "100"})); err != nil {
				t.Fatal(err)
			}
			old, successor := hold("k", 2), hold("k", 3)
			if err := errors.Join(c.read(v, old), c.read(v, successor)); err != nil { // both have read 100
				t.Fatal(err)
			}
			late := c.write(v, redisfence.Change{Hold: old, Set: fields{"n": "90"}})
			if err := c.write(v, redisfence.Change{Hold: successor, Set: fields{"n": "99"}}); err != nil {
				t.Fatal(err)
			}
			if lost := late == nil; lost != c.lost {
				t.Errorf("the late write: %v, and the value is the successor's", late)
			}
			wantValue(t, rdb, "k", fields{"n": "99", "fence": "3"})
		})
	}
}

// When the data is gone the claim is gone, and an earlier read is not to be relied on:
// neither if it stays away, nor if it comes back from a backup.
func TestAClaimDoesNotSurviveTheData(t *testing.T) {
	v, rdb := open(t)
	if _, err := v.Claim(t.Context(), hold("k", 6)); err != nil {
		t.Fatal(err)
	}
	rdb.FlushAll(t.Context())
	wantStale(t, v.Write(t.Context(), change("k", 6, fields{"n": "1"})), fencing.StaleError{Key: "k", Token: 6})
	rdb.HSet(t.Context(), "k", "n", "7", "fence", "5")
	wantStale(t, v.Write(t.Context(), change("k", 6, fields{"n": "1"})), fencing.StaleError{Key: "k", Token: 6, Latest: 5})
	wantValue(t, rdb, "k", fields{"n": "7", "fence": "5"})
}

func TestAskingForWhatIsNotThereLeavesNothingForGood(t *testing.T) {
	v, rdb := open(t)
	ttl := func() time.Duration { return rdb.TTL(t.Context(), "k").Val() }
	if _, err := v.Claim(t.Context(), hold("k", 1)); err != nil {
		t.Fatal(err)
	}
	if left := ttl(); left <= 0 || left > 10*time.Minute {
		t.Errorf("an empty claim lives for %v", left)
	}
	if err := v.Write(t.Context(), change("k", 1, fields{"n": "1"})); err != nil {
		t.Fatal(err)
	}
	if left := ttl(); left >= 0 {
		t.Errorf("the value lives for %v", left)
	}
	// An expiry of the application's own is none of ours.
	rdb.Expire(t.Context(), "k", time.Hour)
	if _, err := v.Claim(t.Context(), hold("k", 2)); err != nil {
		t.Fatal(err)
	}
	if err := v.Write(t.Context(), change("k", 2, fields{"n": "2"})); err != nil {
		t.Fatal(err)
	}
	if left := ttl(); left <= 10*time.Minute {
		t.Errorf("the value lives for %v, want the hour that it was given", left)
	}
}

func TestAnEndedContextStopsAClaimAndNoWrite(t *testing.T) {
	v, rdb := open(t)
	if _, err := v.Claim(t.Context(), hold("k", 1)); err != nil {
		t.Fatal(err)
	}
	gone := errors.New("the client has gone")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(gone)
	if _, err := v.Claim(ctx, hold("k", 2)); !errors.Is(err, gone) {
		t.Errorf("claim: %v, want the context's cause", err)
	}
	if err := v.Write(ctx, change("k", 1, fields{"n": "1"})); err != nil {
		t.Errorf("write: %v", err)
	}
	wantValue(t, rdb, "k", fields{"n": "1", "fence": "1"})
}

func TestWhatRedisRefusesIsNotWritten(t *testing.T) {
	v, rdb := open(t)
	rdb.Set(t.Context(), "text", "no hash", 0)
	if _, err := v.Claim(t.Context(), hold("k", 1), hold("text", 1)); !errors.Is(err, core.ErrUnavailable) {
		t.Errorf("claim: %v", err)
	}
	if err := v.Set(t.Context(), change("k", 1, nil), change("text", 1, nil)); !errors.Is(err, core.ErrUnavailable) {
		t.Errorf("set: %v", err)
	}
	wantValue(t, rdb, "k", fields{})
	for name, err := range map[string]error{
		"no token":    v.Set(t.Context(), change("k", 0, nil)),
		"fence field": v.Write(t.Context(), change("k", 1, fields{redisfence.Field: "9"})),
	} {
		if !errors.Is(err, core.ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := v.Claim(t.Context(), hold("k", 0)); !errors.Is(err, core.ErrConfig) {
		t.Errorf("claim without a token: %v", err)
	}
}

func TestAServerThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	v := redisfence.New(server.Client(t))
	if _, err := v.Claim(t.Context(), hold("k", 1)); err != nil {
		t.Fatal(err)
	}
	server.Kill()
	if err := v.Write(t.Context(), change("k", 1, nil)); !errors.Is(err, redisfence.ErrOutcomeUnknown) {
		t.Errorf("write: %v", err)
	}
	if _, err := v.Claim(t.Context(), hold("k", 1)); !errors.Is(err, core.ErrUnavailable) {
		t.Errorf("claim: %v", err)
	}
}

func TestScriptFlushGoesUnnoticed(t *testing.T) {
	v, rdb := open(t)
	for token := range int64(3) {
		rdb.ScriptFlush(t.Context())
		if _, err := v.Claim(t.Context(), hold("k", token+1)); err != nil {
			t.Fatal(err)
		}
		rdb.ScriptFlush(t.Context())
		if err := v.Write(t.Context(), change("k", token+1, fields{"n": "1"})); err != nil {
			t.Fatal(err)
		}
	}
}
