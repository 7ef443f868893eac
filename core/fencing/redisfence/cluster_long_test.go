//go:build integration && long

package redisfence_test

import (
	"errors"
	"testing"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/fencing/redisfence"
	"github.com/interlock-go/interlock/internal/redistest"
)

func TestOnAClusterValuesOfOneSlotChangeTogether(t *testing.T) {
	rdb := redistest.Cluster(t, 2, 0).Client(t)
	v := redisfence.New(rdb)
	if _, err := v.Claim(t.Context(), hold("{x}a", 1), hold("{x}b", 2)); err != nil {
		t.Fatal(err)
	}
	if err := v.Write(t.Context(), change("{x}a", 1, fields{"n": "1"}), change("{x}b", 2, fields{"n": "2"})); err != nil {
		t.Fatal(err)
	}
	wantValue(t, rdb, "{x}a", fields{"n": "1", "fence": "1"})
	wantValue(t, rdb, "{x}b", fields{"n": "2", "fence": "2"})
	if _, err := v.Claim(t.Context(), hold("a", 1), hold("b", 1)); !errors.Is(err, core.ErrUnavailable) {
		t.Errorf("of two slots: %v", err)
	}
	wantValue(t, rdb, "a", fields{})
}
