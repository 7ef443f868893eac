package keystate

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

// A row that is said to be as good as its record must have the same future.
func TestARecordGoesOnFromItsRow(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	rnd := rand.New(rand.NewPCG(seed, 0))
	rows, reserved := 0, 0
	for range 2000 {
		r, now := new(Record), time.UnixMicro(1_800_000_000_000_000)
		for range 20 {
			now = now.Add(time.Duration(rnd.Int64N(1+[]int64{0, 400, 40_000}[rnd.IntN(3)])) * time.Microsecond)
			random(r, rnd, now)
			v, ok := r.Row(now)
			if !ok {
				continue
			}
			if rows++; v.Waiting != "" && v.Owner == "" {
				reserved++
			}
			next := rnd.Uint64()
			a, b, later := r.Clone(), v.Record(), now
			x, y := rand.New(rand.NewPCG(next, 1)), rand.New(rand.NewPCG(next, 1))
			for range 10 {
				later = later.Add(time.Duration(x.Int64N(40_000)) * time.Microsecond)
				y.Int64N(40_000)
				if want, got := random(a, x, later), random(b, y, later); got != want {
					t.Fatalf("seed %d: the row %+v goes on with %s; want %s", seed, v, got, want)
				}
			}
		}
	}
	if rows < 200 || reserved < 2 {
		t.Errorf("%d records were rows, and %d of them reserved; want 200 and 2", rows, reserved)
	}
}

func TestARecordThatARowCannotSayStays(t *testing.T) {
	t.Parallel()
	now := time.UnixMicro(1_800_000_000_000_000)
	took := func(req driver.AcquireRequest) *Record {
		r := new(Record)
		req.Owner, req.TTL = req.Owner+"a:1", time.Second
		r.Acquire(req, now)
		return r
	}
	attentive := new(Record)
	attentive.Acquire(driver.AcquireRequest{Owner: driver.Attentive("a:1"), TTL: time.Second}, now)
	wants := took(driver.AcquireRequest{})
	wants.Acquire(driver.AcquireRequest{Owner: "b:1", Kind: driver.Shared, TTL: time.Second, Waiter: "b~a"}, now)
	for name, r := range map[string]*Record{
		"shared": took(driver.AcquireRequest{Kind: driver.Shared}), "permit": took(driver.AcquireRequest{Kind: driver.Permit, AtMost: 1}),
		"newest": took(driver.AcquireRequest{Line: driver.Newest, Waiter: "a"}), "attentive": attentive, "wants a place": wants,
	} {
		if v, ok := r.Row(now); ok {
			t.Errorf("%s: said to be the row %+v", name, v)
		}
		if v, ok := r.Row(now.Add(2 * time.Minute)); !ok || v.Owner != "" || v.Token != r.token {
			t.Errorf("%s, two minutes later: %+v, %v; want a row with the token %d", name, v, ok, r.token)
		}
	}
	if v, ok := took(driver.AcquireRequest{}).Row(now); !ok || v.Owner != "a:1" {
		t.Errorf("an exclusive holder: %+v, %v; want its row", v, ok)
	}
}
