//go:build integration && unix

package postgres_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/fleet"
)

// An operator sees each record once, in pages, and from the last seen on.
func TestRecordsAreListedByStateAndAgeFromACursorOn(t *testing.T) {
	t.Parallel()
	db, _ := tables(t)
	store := newStore(t, db)
	f, err := fleet.On(store)
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
		q    fleet.RecordQuery
		want map[string]int
	}{
		{fleet.RecordQuery{}, map[string]int{
			fleet.RecordCompleted: many / 4, fleet.RecordUnknown: many / 4, fleet.RecordLapsed: many / 4,
			fleet.RecordInFlight: many / 8, fleet.RecordHandedOver: many / 8,
		}},
		{fleet.RecordQuery{States: []string{fleet.RecordUnknown}}, map[string]int{fleet.RecordUnknown: many / 4}},
		{fleet.RecordQuery{States: []string{fleet.RecordHandedOver}}, map[string]int{fleet.RecordHandedOver: many / 8}},
		{fleet.RecordQuery{Older: time.Hour, States: []string{fleet.RecordUnknown, fleet.RecordInFlight}}, map[string]int{fleet.RecordUnknown: many / 4}},
		{fleet.RecordQuery{Older: 3 * time.Hour}, map[string]int{}},
		{fleet.RecordQuery{After: "r1196"}, map[string]int{
			fleet.RecordUnknown: 1, fleet.RecordLapsed: 1, fleet.RecordInFlight: 1, fleet.RecordCompleted: 1,
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
	r, err := f.RecordByID(t.Context(), "r0004")
	if err != nil || r.State != fleet.RecordCompleted || r.Protocol != "http" || r.Status != 137 || r.Size != 8 {
		t.Errorf("%+v, %v; want the answer's protocol, status and size", r, err)
	}
	if r, err = f.RecordByID(t.Context(), "none"); err != nil || r.State != fleet.RecordNone {
		t.Errorf("%+v, %v; want no record", r, err)
	}
}
