package rediswire

import (
	"strings"
	"testing"

	"github.com/interlock-go/interlock/internal/redistest"
)

// FuzzNames checks that no key, however hostile, has a name in common with
// another, and that all names of a key are in one slot of a Cluster.
func FuzzNames(f *testing.F) {
	for _, s := range [][2]string{
		{"a", "b"},
		{"}", "{"},
		{"a}", "a}:fence"},
		{`\`, `\\`},
		{`\)`, "}"},
		{"a}{b", "a"},
		{"{}", `\(\)`},
		{"\x00", "\xff"},
		{"account/42", "account/42}:free"},
		{"", "}"},
		{":", "::"},
	} {
		f.Add(s[0], s[1])
	}
	all := func(key string) []string {
		n := namesOf("interlock", 3)
		lock := n.lock(key)
		return []string{lock, fenceOf(lock), n.channel(lock)}
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		if a == "" || b == "" {
			return // is no key
		}
		ofA, ofB := all(a), all(b)
		for _, x := range ofA {
			_, rest, _ := strings.Cut(x, "{")
			tag, _, closed := strings.Cut(rest, "}")
			if !closed || tag == "" || redistest.Slot(x) != redistest.Slot(tag) || redistest.Slot(x) != redistest.Slot(ofA[0]) {
				t.Errorf("%q is not in the slot of %q", x, ofA[0])
			}
			for _, y := range ofB {
				if a != b && x == y {
					t.Errorf("%q and %q both have the name %q", a, b, x)
				}
			}
		}
		if record := (&Store{names: namesOf("interlock", 3)}).Record("id"); a != b && record == ofA[0] {
			t.Errorf("%q has the name of a record", a)
		}
	})
}
