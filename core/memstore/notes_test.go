package memstore

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

// The notes of taken tickets are not in the record of their key, and do not stay.
func TestNotesOfTakenTicketsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New()
		moves := func(owner, from string) error {
			_, err := s.Acquire(t.Context(), driver.AcquireRequest{Key: "k", Owner: owner, From: from, TTL: time.Minute, Noted: time.Hour})
			return err
		}
		if err := moves("a:0", ""); err != nil {
			t.Fatal(err)
		}
		owner := func(i int) string { return fmt.Sprint("a:", i) }
		const handOvers = 20_000
		for i := range handOvers {
			if err := moves(owner(i+1), owner(i)); err != nil {
				t.Fatalf("hand-over %d: %v; expected is none", i, err)
			}
			time.Sleep(time.Second)
		}
		if _, err := s.Release(t.Context(), driver.ReleaseRequest{Key: "k", Owner: owner(handOvers)}); err != nil {
			t.Fatal(err)
		}
		if err := moves("b:1", owner(handOvers-1)); !errors.Is(err, driver.ErrPassedOn) {
			t.Errorf("the last ticket is brought again: %v; expected is ErrPassedOn", err)
		}
		if err := moves("b:1", owner(0)); !errors.Is(err, driver.ErrDeleted) {
			t.Errorf("the first ticket is brought again after hours: %v; expected is ErrDeleted", err)
		}
		text, err := s.locks["k"].AppendText(nil)
		if err != nil || len(text) > 100 {
			t.Errorf("after the hand-overs the record is %.200s (%v); expected are at most 100 bytes", text, err)
		}
		if n := s.notes.Len(); n > 2*3700 {
			t.Errorf("the store has %d notes; expected are at most two hours of them", n)
		}
	})
}
