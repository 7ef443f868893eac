package ticket

import (
	"bytes"
	"strings"
	"testing"
)

func TestATextThatIsNoTicketIsRefused(t *testing.T) {
	good := Encode("kind.", []byte("contents"))
	for name, text := range map[string]string{
		"empty": "", "no kind": good[5:], "another kind": "kine." + good[5:], "cut": good[:len(good)-1], "cut to its kind": "kind.",
		"cut to less than its sum": good[:8], "longer": good + "A", "in another case": "KIND." + good[5:], "with a line break": good[:9] + "\n" + good[9:],
		"at its end": good + "\n", "with a space": good + " ", "padded": good + "=", "too long": "kind." + strings.Repeat("A", MaxLength),
	} {
		if body, err := Decode("kind.", text); err == nil {
			t.Errorf("%s: a ticket that holds %q", name, body)
		} else if text != "" && strings.Contains(err.Error(), text) {
			t.Errorf("%s: the error shows the text: %v", name, err)
		}
	}
	for i := range good {
		changed := good[:i] + string(rune(good[i]^1)) + good[i+1:]
		if body, err := Decode("kind.", changed); err == nil {
			t.Errorf("with another character %d: a ticket that holds %q", i, body)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add("kind.", Encode("kind.", []byte("contents")))
	f.Add("", "AAAA")
	f.Fuzz(func(t *testing.T, kind, text string) {
		body, err := Decode(kind, text)
		if err != nil {
			return
		}
		if again := Encode(kind, body); again != text {
			t.Errorf("%q and %q hold the same", text, again)
		}
		if back, err := Decode(kind, Encode(kind, body)); err != nil || !bytes.Equal(back, body) {
			t.Errorf("%q comes back as %q, %v; want the same", body, back, err)
		}
	})
}
