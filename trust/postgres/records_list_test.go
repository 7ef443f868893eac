//go:build integration && unix

package postgres_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	operator "github.com/interlock-go/interlock/core/fleet"
)

// An operator sees each record once, in pages, and from the last seen on.
func TestRecordsAreListedByStateAndAgeFromACursorOn(t *testing.T) {
	t.Parallel()
	db, _ := tables(t)
	store := newStore(t, db)
	f, err := operator.On(store)
	if err != nil {
		t.Fatal(err)
	}
	const many = 1200 // more than two pages
	insert := `INSERT INTO interlock_record (id, token, fingerprint, generation, state, marked, waits, lease_until, keep_until, sweep_hour, ticket, response)
		SELECT 'r' || lpad(i::text, 4, '0'), 't', '', 1, CASE i % 4 WHEN 0 THEN 'd' ELSE 'c' END, i % 4 = 1, false,
			now() + CASE i % 4 WHEN 3 THEN interval '1 hour' ELSE interval '-2 hours' END, now() + interval '3 hours', 0,
			CASE i % 8 WHEN 3 THEN 't' END, '\x0104687474708901'
		FROM generate_series(1, $1::int) i`
	if _, err := db.ExecContext(t.Context(), insert, many); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		q    operator.RecordQuery
		want map[string]int
	}{
		{operator.RecordQuery{}, map[string]int{
			operator.RecordCompleted: many / 4, operator.RecordUnknown: many / 4, operator.RecordLapsed: many / 4,
			operator.RecordInFlight: many / 8, operator.RecordHandedOver: many / 8,
		}},
		{operator.RecordQuery{States: []string{operator.RecordUnknown}}, map[string]int{operator.RecordUnknown: many / 4}},
		{operator.RecordQuery{States: []string{operator.RecordHandedOver}}, map[string]int{operator.RecordHandedOver: many / 8}},
		{operator.RecordQuery{Older: time.Hour, States: []string{operator.RecordUnknown, operator.RecordInFlight}}, map[string]int{operator.RecordUnknown: many / 4}},
		{operator.RecordQuery{Older: 3 * time.Hour}, map[string]int{}},
		{operator.RecordQuery{After: "r1196"}, map[string]int{
			operator.RecordUnknown: 1, operator.RecordLapsed: 1, operator.RecordInFlight: 1, operator.RecordCompleted: 1,
		}},
	} {
		got, seen := map[string]int{}, map[string]bool{}
		for r, err := range f.Records(t.Context(), c.q) {
			if err != nil {
				t.Fatal(err)
			}
			if got[r.State]++; seen[r.ID] || r.Cursor != r.ID {
				t.Fatalf("%+v comes twice, or has another cursor", r)
			}
			seen[r.ID] = true
		}
		if fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("%+v lists %v; want %v", c.q, got, c.want)
		}
	}
	if n, err := f.Unknown(t.Context()); n != many/4 || err != nil {
		t.Errorf("counted %d unknown outcomes, %v; want %d", n, err, many/4)
	}
	r, err := f.RecordByID(t.Context(), "r0004")
	if err != nil || r.State != operator.RecordCompleted || r.Protocol != "http" || r.Status != 137 || r.Size != 8 {
		t.Errorf("%+v, %v; want the answer's protocol, status and size", r, err)
	}
	if r, err = f.RecordByID(t.Context(), "none"); err != nil || r.State != operator.RecordNone {
		t.Errorf("%+v, %v; want no record", r, err)
	}
}

// A record can be of a later version, or be damaged.
func TestARecordThatCannotBeReadHidesNoOtherLock(t *testing.T) {
	t.Parallel()
	db, _ := tables(t)
	s := newStore(t, db)
	for _, key := range []string{"a", "b", "c"} {
		rep := takeAs(t, s, driver.AcquireRequest{Key: key, Owner: "o:" + key, Kind: driver.Shared})
		if !rep.Granted {
			t.Fatalf("%+v; want it granted", rep)
		}
	}
	execute(t, db, "UPDATE interlock_lock SET record = '9 of a later version' WHERE key = 'b'")
	f, err := operator.On(s)
	if err != nil {
		t.Fatal(err)
	}
	for pattern, want := range map[string]string{"": "a c", "c*": "c"} {
		var keys []string
		var failed error
		for l, err := range f.Locks(t.Context(), pattern) {
			if failed = err; err == nil {
				keys = append(keys, l.Key)
			}
		}
		if got := strings.Join(keys, " "); got != want {
			t.Errorf("the locks of %q are %s; want %s", pattern, got, want)
		}
		if named := errors.Is(failed, operator.ErrIncomplete) && strings.Contains(failed.Error(), `"b"`); named != (pattern == "") {
			t.Errorf("the list of %q ends with %v; want an error that names the lock, where it is of the pattern", pattern, failed)
		}
	}
	if _, err := f.Inspect(t.Context(), "b"); err == nil {
		t.Error("the lock that cannot be read is shown without an error")
	}
}
