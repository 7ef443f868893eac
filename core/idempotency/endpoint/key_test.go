package endpoint_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/reason"
)

func TestKeysAreReadAsTheGrammarSays(t *testing.T) {
	long := strings.Repeat("k", 255)
	for _, c := range []struct{ in, key string }{
		{"k", "k"},
		{`"k"`, "k"},
		{" \tk ", "k"},
		{"8e03978e-40d5-43dd-bc93-6894a57f9324", "8e03978e-40d5-43dd-bc93-6894a57f9324"},
		{`"8e03978e-40d5-43dd-bc93-6894a57f9324"`, "8e03978e-40d5-43dd-bc93-6894a57f9324"},
		{"a/b+c==", "a/b+c=="},
		{"urn:x:*", "urn:x:*"},
		{`"a b,c;d"`, "a b,c;d"},
		{`"a\"b\\c"`, `a"b\c`},
		{long, long},
		{`"` + long + `"`, long},
	} {
		if key, err := endpoint.ParseKey([]string{c.in}); key != c.key || err != nil {
			t.Errorf("%q: %q, %v", c.in, key, err)
		}
	}
	for _, in := range []string{
		"", " ", `""`, `"`, `"k`, `k"`, `"k"x`, `"k";a=1`, `"k" "l"`, "a b", "a,b", "a;b", `a\b`, `"a\b"`, `"a\`, "(k)", "{k}",
		"k\x00", "\"k\x00\"", "k\x7f", "\"k\x7f\"", "ключ", `"ключ"`, "k\n", long + "k", `"` + long + `k"`, "a\tb",
	} {
		if key, err := endpoint.ParseKey([]string{in}); !errors.Is(err, endpoint.ErrKeyMalformed) || !errors.Is(err, core.ErrKey) {
			t.Errorf("%q: %q, %v", in, key, err)
		}
	}
	if _, err := endpoint.ParseKey(nil); !errors.Is(err, endpoint.ErrKeyMissing) {
		t.Errorf("none: %v", err)
	}
	if _, err := endpoint.ParseKey([]string{"k", "k"}); !errors.Is(err, endpoint.ErrKeyMalformed) {
		t.Errorf("two: %v", err)
	}
}

// FuzzParseKey checks that an accepted text is a key, that quoting it makes no
// difference, and that errors do not show it.
func FuzzParseKey(f *testing.F) {
	for _, s := range []string{"k", `"k"`, `"a\"b"`, `"a\`, "a,b", " k ", `""`, "é"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, in string) {
		key, err := endpoint.ParseKey([]string{in})
		if err != nil {
			if !errors.Is(err, endpoint.ErrKeyMalformed) {
				t.Errorf("%q: %v", in, err)
			}
			return
		}
		if key == "" || len(key) > endpoint.MaxKey {
			t.Errorf("%q: a key of %d characters", in, len(key))
		}
		quoted := `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(key) + `"`
		if again, err := endpoint.ParseKey([]string{quoted}); again != key || err != nil {
			t.Errorf("%q: quoted it is %q, %v", in, again, err)
		}
	})
}

func TestARefusedKeySaysWhatIsAccepted(t *testing.T) {
	for _, key := range []string{"a b", "a,b", "{0f8fad5b-d9cb-469f-a165-70867728950e}"} {
		if _, err := endpoint.ParseKey([]string{key}); !errors.Is(err, endpoint.ErrKeyMalformed) ||
			!strings.Contains(err.Error(), "double quotes") {
			t.Errorf("%q: %v", key, err)
		}
		if got, err := endpoint.ParseKey([]string{`"` + key + `"`}); got != key || err != nil {
			t.Errorf("%q in quotes: %q, %v", key, got, err)
		}
	}
	// The text is the detail of the problem in HTTP and the message of the status in gRPC.
	for _, want := range []string{"255", "letters", "double quotes", "backslash"} {
		if text := reason.KeyMalformed.Text(); !strings.Contains(text, want) {
			t.Errorf("%q does not say %q", text, want)
		}
	}
}

func ExampleParseKey() {
	for _, values := range [][]string{{`"a key"`}, {"8e03978e"}, {`"8e03978e"`}, {"a key"}, {"a", "b"}, {}} {
		key, err := endpoint.ParseKey(values)
		fmt.Println(key, err)
	}
	// Output:
	// a key <nil>
	// 8e03978e <nil>
	// 8e03978e <nil>
	//  interlock: bad lock key: malformed idempotency key: byte 1 is not one of a key without quotes: spaces, commas and braces are accepted in double quotes
	//  interlock: bad lock key: malformed idempotency key: given more than once
	//  interlock: bad lock key: no idempotency key
}
