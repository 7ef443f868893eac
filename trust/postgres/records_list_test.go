//go:build integration && unix

package postgres_test

import (
	"fmt"
	"testing"
	"time"

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
	r, err := f.RecordByID(t.Context(), "r0004")
	if err != nil || r.State != operator.RecordCompleted || r.Protocol != "http" || r.Status != 137 || r.Size != 8 {
		t.Errorf("%+v, %v; want the answer's protocol, status and size", r, err)
	}
	if r, err = f.RecordByID(t.Context(), "none"); err != nil || r.State != operator.RecordNone {
		t.Errorf("%+v, %v; want no record", r, err)
	}
}
