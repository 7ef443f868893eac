package core

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/interlock-go/interlock/core/internal/clock"
)

func TestTheAgendaGivesTheNextEventFirst(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var a agenda
	tenures := make([]*tenure, 300)
	at := map[*tenure]clock.Instant{}
	for i := range tenures {
		tenures[i] = &tenure{index: -1}
	}
	for range 20_000 {
		ten := tenures[random.IntN(len(tenures))]
		switch random.IntN(3) {
		case 0:
			a.remove(ten) // also of one that is not in
			delete(at, ten)
		default:
			at[ten] = clock.Instant(random.IntN(1000))
			a.put(event{at: at[ten], ten: ten})
		}
		if len(a) != len(at) {
			t.Fatalf("%d events, want %d", len(a), len(at))
		}
		if len(a) == 0 {
			continue
		}
		first := clock.Never
		for _, when := range at {
			first = min(first, when)
		}
		if a[0].at != first {
			t.Fatalf("the next event is at %d, want %d", a[0].at, first)
		}
	}
	var order []clock.Instant
	for len(a) > 0 {
		if a[0].at != at[a[0].ten] {
			t.Fatalf("an event at %d, want %d", a[0].at, at[a[0].ten])
		}
		order = append(order, a[0].at)
		a.remove(a[0].ten)
	}
	if !slices.IsSorted(order) {
		t.Error("not in order")
	}
	for _, ten := range tenures {
		if ten.index != -1 {
			t.Errorf("a tenure that was taken out has place %d", ten.index)
		}
	}
}
