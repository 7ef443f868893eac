package keystate

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/internal/drawn"
)

// written has the fields of requests that records were written after.
var written drawn.Fields[driver.AcquireRequest]

// random makes a random request to a record, and returns all that comes of it.
func random(r *Record, rnd *rand.Rand, now time.Time) string {
	id := string(rune('a' + rnd.IntN(4)))
	owner := fmt.Sprintf("%s:%d", id, rnd.IntN(2))
	name := driver.NewWaiter(id, driver.Exclusive, time.Duration(rnd.IntN(60))*time.Millisecond)
	if rnd.IntN(2) == 0 {
		name = name.TakingOffers()
	}
	ask := driver.AcquireRequest{
		Owner: owner, Kind: driver.Kind(rnd.IntN(3)), AtMost: 2, TTL: time.Duration(1+rnd.IntN(300)) * time.Millisecond,
		Waiter: name, Left: time.Duration(rnd.IntN(2)) * time.Second,
	}
	if ask.Kind == driver.Exclusive {
		ask.Line, ask.Order, ask.Number = driver.Line(rnd.IntN(3)), rnd.Int64N(9), rnd.Int64N(3)
		if rnd.IntN(2) == 0 {
			ask.Offer = r.reserved.token
		}
	}
	written.Note(ask)
	switch rnd.IntN(8) {
	case 0, 1, 2:
		rep, n := r.Acquire(ask, now)
		return fmt.Sprint(rep, n)
	case 3:
		ask.Owner, ask.Kind = "", driver.Exclusive
		rep, n := r.Stand(ask, now)
		return fmt.Sprint(rep, n)
	case 4:
		contended, err := r.Renew(driver.Renewal{Owner: owner, Kind: ask.Kind, TTL: ask.TTL}, now)
		return fmt.Sprint(contended, err)
	case 5, 6:
		waiting, n, err := r.Release(
			driver.ReleaseRequest{Owner: owner, Kind: ask.Kind, AtMost: 2, Waiter: name}, func(string) bool { return true }, now)
		return fmt.Sprint(waiting, n, err)
	default:
		if rnd.IntN(2) == 0 {
			return fmt.Sprint(r.Decline(id, now))
		}
		ask.From, ask.Noted, ask.Above, ask.Waiter, ask.Line = id+":1", time.Second, rnd.Int64N(9), "", driver.InTurn
		written.Note(ask)
		rep, n, err := r.Move(ask, now)
		return fmt.Sprint(rep, n, err)
	}
}

func TestARecordGoesOnFromItsText(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	rnd := rand.New(rand.NewPCG(seed, 0))
	seen := map[string]bool{}
	for range 200 {
		var kept, read Record
		now := time.UnixMicro(1_700_000_000_000_000)
		for range 200 {
			now = now.Add(time.Duration(rnd.IntN(50)) * time.Millisecond)
			if rnd.IntN(50) == 0 {
				now = now.Add(-time.Second)
			}
			one := rnd.Uint64()
			was, is := random(&kept, rand.New(rand.NewPCG(one, 1)), now), random(&read, rand.New(rand.NewPCG(one, 1)), now)
			if was != is {
				t.Fatalf("seed %d: after its text a record answers %s; the record itself answered %s", seed, is, was)
			}
			text, err := read.AppendText(nil)
			if err != nil {
				t.Fatal(err)
			}
			for _, field := range known {
				seen[field] = seen[field] || bytes.Contains(text, []byte(`"`+field+`":`))
			}
			read = Record{}
			if err := read.UnmarshalText(text); err != nil {
				t.Fatalf("seed %d: a record does not read its text %s: %v", seed, text, err)
			}
		}
	}
	for _, field := range known {
		if !seen[field] {
			t.Errorf("no text had the field %q", field)
		}
	}
	written.WantAll(t, "Key", "Deadline", "Late") // of which the rules know nothing
}

func TestATextKeepsFieldsThatThisVersionDoesNotKnow(t *testing.T) {
	var r Record
	if err := r.UnmarshalText([]byte(`{"v":1,"owner":"a:1","token":7,"later":{"x":[1,2]},"and":"more"}`)); err != nil {
		t.Fatal(err)
	}
	written, err := r.AppendText(nil)
	if want := `{"v":1,"owner":"a:1","token":7,"and":"more","later":{"x":[1,2]}}`; err != nil || string(written) != want {
		t.Errorf("the record wrote %s (%v); want %s", written, err, want)
	}
}

func TestATextOfAnotherVersionIsNoRecord(t *testing.T) {
	for _, text := range []string{"", "{}", `{"v":2,"owner":"a:1"}`, `{"v":1`, `[1]`, `{"v":1,"places":7}`} {
		r := Record{owner: "kept"}
		if err := r.UnmarshalText([]byte(text)); !errors.Is(err, driver.ErrKeyOccupied) || r.owner != "kept" {
			t.Errorf("%q was read with the error %v, and the owner is %q; want an occupied key, and the record as it was", text, err, r.owner)
		}
	}
}

func FuzzText(f *testing.F) {
	f.Add([]byte(`{"v":1,"owner":"a:1","token":7,"ends":9,"waiting":[{"name":"b~E"},{"name":"+c","called":true}],"barrier":3}`))
	f.Add([]byte(`{"v":1,"places":[{"owner":"a:1","token":1,"ends":2}],"kept":{"since":1,"lasts":2,"offer":"a:5","token":5}}`))
	f.Add([]byte(`{"v":1,"newest":{"number":4,"since":3,"came":[{"by":"a","order":2,"number":4}]},"only":{"id":"b","until":5},"x":null}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var first, second, third Record // what a text says beside its values, the second does not have
		if first.UnmarshalText(b) != nil {
			return
		}
		written, err := first.AppendText(nil)
		if err != nil {
			t.Fatalf("the record of %q has no text: %v", b, err)
		}
		if err := second.UnmarshalText(written); err != nil {
			t.Fatalf("%q became %q, which is no record: %v", b, written, err)
		}
		again, err := second.AppendText(nil)
		if err != nil || !bytes.Equal(written, again) || third.UnmarshalText(again) != nil || !reflect.DeepEqual(second, third) {
			t.Fatalf("%q became %q, and then %q (%v)", b, written, again, err)
		}
		now := time.UnixMicro(1_700_000_000_000_000)
		first.Acquire(driver.AcquireRequest{Owner: "z:1", TTL: time.Second, Waiter: "z"}, now) // no text breaks the rules
	})
}
