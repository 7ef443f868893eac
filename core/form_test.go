package core_test

import (
	"context"
	"errors"
	"math/big"
	"strings"
	"testing"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/adapter"
	"github.com/interlock-go/interlock/core/reason"
)

// A handler that parses numbers takes all of these for one account, and four of
// them were inside at once.
func TestTextsOfOneNumberAreOneKey(t *testing.T) {
	inWorld(t, func(w *world) {
		guard := core.Serialize(w.locker, "account/{id:int}")
		for _, id := range []string{"42", "042", "+42", "0000000000000000000000042"} {
			keys, err := guard.Keys(w.Context(), request{"id": id})
			if err != nil || keys[0] != "account/42" {
				w.Errorf("%q: %q, %v", id, keys, err)
			}
		}
		for _, id := range []string{"", "4 2", " 42", "0x2a", "4_2", "42.0", "4e1", "--42", "+", "-", "٤٢", "42\x00"} {
			w.refused(w.Context(), guard, request{"id": id}, reason.BadKey)
		}
	})
}

func TestCanonicalTexts(t *testing.T) {
	const uuid = "f81d4fae-7dec-11d0-a765-00a0c91e6bf6"
	for form, texts := range map[core.Form]map[string]string{
		core.FormInt: {
			"42": "42", "-042": "-42", "-0": "0", "+0": "0", "000": "0", "18446744073709551616": "18446744073709551616",
			"": "-", "4,2": "-", "+-1": "-",
		},
		core.FormUUID: {
			uuid: uuid, strings.ToUpper(uuid): uuid, "{" + uuid + "}": uuid, "URN:uuid:" + uuid: uuid,
			strings.ReplaceAll(uuid, "-", ""): uuid,
			"":                                "-", uuid[1:]: "-", uuid + "0": "-", "{" + uuid[2:] + "}": "-", "g" + uuid[1:]: "-",
			"f81d4fae-7dec-11d0-a76500-a0c91e6bf6": "-", strings.Replace(uuid, "-", "f", 1): "-",
		},
		core.FormLower: {
			"Alice@Example.ORG": "alice@example.org", "JÖRG": "jörg", "ΟΔΟΣ": "οδοσ", "οδος": "οδοσ", "\u212a": "k", "ſ": "s",
			"İ": "İ", "\xff": "-",
		},
	} {
		for text, want := range texts {
			got, err := form.Canonical(text)
			if want == "-" {
				if !errors.Is(err, core.ErrKey) || got != "" || text != "" && strings.Contains(err.Error(), text) {
					t.Errorf("%s %q: %q, %v", form, text, got, err)
				}
				continue
			}
			if got != want || err != nil {
				t.Errorf("%s %q: %q, %v; want %q", form, text, got, err, want)
			}
		}
	}
	if _, err := core.Form("hex").Canonical("2a"); !errors.Is(err, core.ErrConfig) {
		t.Errorf("a form that is none: %v", err)
	}
}

func TestAFormIsForEverySource(t *testing.T) {
	inWorld(t, func(w *world) {
		user := core.ContextFunc("user", func(context.Context, core.Request) (string, error) { return "Alice", nil })
		guard := core.Serialize(w.locker, "{header.n:int}/{msg.id:uuid}/{ctx.user:lower}", user)
		keys, err := guard.Keys(w.Context(), request{"N": "007", "id": "F81D4FAE7DEC11D0A76500A0C91E6BF6"})
		if err != nil || keys[0] != "7/f81d4fae-7dec-11d0-a765-00a0c91e6bf6/alice" {
			w.Errorf("%q, %v", keys, err)
		}
		if p := guard.Placeholders()[1]; p != (adapter.Placeholder{Source: adapter.SourceParam, Name: "id", Form: string(core.FormUUID)}) {
			w.Errorf("%+v", p)
		}
	})
}

// FuzzForms checks that a canonical text is its own canonical text, that two texts
// share one exactly if they mean the same number, UUID or word, and that an error shows
// no value.
func FuzzForms(f *testing.F) {
	for _, pair := range [][2]string{
		{"42", "042"},
		{"-0", "+0"},
		{"f81d4fae-7dec-11d0-a765-00a0c91e6bf6", "{F81D4FAE-7DEC-11D0-A765-00A0C91E6BF6}"},
		{"f81d4fae7dec11d0a76500a0c91e6bf6", "urn:uuid:f81d4fae-7dec-11d0-a765-00a0c91e6bf6"},
		{"\u212aſς", "kSΣ"},
		{"İ", "i"},
		{"ǅ", "ǆ"},
		{"\xff", "a\x00"},
	} {
		f.Add(pair[0], pair[1])
	}
	bare := strings.NewReplacer("urn:uuid:", "", "-", "", "{", "", "}", "")
	one := map[core.Form]func(a, b string) bool{
		core.FormInt: func(a, b string) bool {
			x, okX := new(big.Int).SetString(a, 10)
			y, okY := new(big.Int).SetString(b, 10)
			return okX && okY && x.Cmp(y) == 0
		},
		core.FormUUID:  func(a, b string) bool { return bare.Replace(strings.ToLower(a)) == bare.Replace(strings.ToLower(b)) },
		core.FormLower: strings.EqualFold,
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		for form, same := range one {
			x, errX := form.Canonical(a)
			y, errY := form.Canonical(b)
			if errX != nil || errY != nil {
				if x, ok := new(big.Int).SetString(a, 10); form == core.FormInt && errX != nil && ok {
					t.Errorf("%q is the number %v: %v", a, x, errX)
				}
				continue
			}
			if again, err := form.Canonical(x); again != x || err != nil {
				t.Errorf("%s %q: canonical %q, and of that %q, %v", form, a, x, again, err)
			}
			if (x == y) != same(a, b) || !same(a, x) {
				t.Errorf("%s: %q is %q, %q is %q", form, a, x, b, y)
			}
		}
	})
}
