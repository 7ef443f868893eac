package rediswire

import (
	"slices"
	"strings"
	"testing"

	"github.com/interlock-go/interlock/core/driver"
)

// Should replies ever get out of step, the milliseconds that a holder has left must
// not be taken for the token of a lock, nor a release for a renewal.
func TestTheReplyToAnotherCallIsNone(t *testing.T) {
	const token = int64(1_700_000_000_000_000)
	for name, c := range map[string]struct {
		reply any
		ok    bool
	}{
		"its own":                      {[]any{"acquire", token, []any{"holder", int64(29990), int64(1)}, "OOM"}, true},
		"a lock that is held":          {[]any{"holder", int64(29990), int64(1)}, false},
		"a call of another length":     {[]any{"acquire", token, token}, false},
		"a call of another script":     {[]any{"renew", int64(1), int64(1), int64(1)}, false},
		"a single reply":               {token, false},
		"nothing, as after a pipeline": {nil, false},
	} {
		for i := range 3 {
			val, err := acquireScript.part(c.reply, i, 3)
			if known := val != nil || err != nil; known != c.ok {
				t.Errorf("%s: part %d is %v, %v", name, i, val, err)
			}
		}
	}
	if _, err := acquireScript.part([]any{"acquire", token, "OOM command not allowed"}, 1, 2); fateOf(err) != refused {
		t.Errorf("the text of an error is %v", err)
	}
}

func TestTheAnswerToARequestForAPlaceIsReadStrictly(t *testing.T) {
	const token = int64(1_700_000_000_000_000)
	full := []any{"a:1,a:2", int64(900), int64(1), int64(1)}
	for name, c := range map[string]struct {
		kind  driver.Kind
		val   any
		known bool
	}{
		"a token":                     {driver.Permit, token, true},
		"a refusal":                   {driver.Permit, full, true},
		"a refusal of the lock":       {driver.Permit, []any{"a:1", int64(900), int64(1)}, false},
		"a refusal of a place":        {driver.Exclusive, full, false},
		"a number that is no flag":    {driver.Permit, []any{"a:1", int64(900), int64(1), int64(900)}, false},
		"a time that is none":         {driver.Permit, []any{"a:1", "900", int64(1), int64(1)}, false},
		"holders that are none":       {driver.Shared, []any{int64(1), int64(900), int64(1), int64(1)}, false},
		"the answer to another":       {driver.Shared, int64(2), false},
		"an empty list":               {driver.Shared, []any{}, false},
		"a longer list":               {driver.Shared, append(full[:4:4], int64(1)), false},
		"nothing":                     {driver.Shared, nil, false},
		"a refusal of the lock alone": {driver.Exclusive, full[:3], true},
	} {
		r := &acquire{ask: driver.AcquireRequest{Kind: c.kind}}
		r.Val = c.val
		rep, err := r.reply()
		if (err == nil) != c.known || err != nil && (rep.Granted || !rep.Ambiguous) {
			t.Errorf("%s: %+v, %v", name, rep, err)
		}
		if err == nil && !rep.Granted && rep.Full != (c.kind == driver.Permit) {
			t.Errorf("%s: %+v", name, rep)
		}
	}
}

func FuzzAnnouncements(f *testing.F) {
	for _, m := range []string{"", "a,b", "+a,b", "*1,+a", "*2,+a,+b,c", "*", "*,", "*0,+a", "*-1,a", "*99999999999999999999,a", "*1", "*1,", "**1,a"} {
		f.Add(m)
	}
	f.Fuzz(func(t *testing.T, message string) {
		c, called := turnOf(message, "a")
		named := slices.ContainsFunc(strings.Split(message, ","), func(w string) bool { return driver.Waiter(w).ID() == "a" })
		switch {
		case called && c.What == driver.Turn && (!named || c.In < 0), c.What != driver.Turn && c.What != driver.Unsure:
			t.Errorf("%q is %+v, %v; want the turn of a locker that it names, or none", message, c, called)
		case called && c.What == driver.Unsure && message != "" && message[0] != '*':
			t.Errorf("%q is %+v; want the list to be read", message, c)
		}
	})
}
