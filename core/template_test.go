package core

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/interlock-go/interlock/core/adapter"
	"github.com/interlock-go/interlock/core/reason"
)

// values is a request made of maps. The route does not have a parameter that is not in
// params.
type values struct {
	params  map[string]string
	headers map[string][]string
	query   map[string][]string
	bad     error // what Param returns
}

func (v *values) Route() (string, bool)       { return "/some/route", true }
func (v *values) Header(name string) []string { return v.headers[name] }
func (v *values) Query(name string) []string  { return v.query[name] }
func (v *values) Body(int64) ([]byte, error)  { return nil, nil }
func (v *values) Native() any                 { return v }
func (v *values) Value(any) any               { return nil }

func (v *values) Param(name string) (string, error) {
	if v.bad != nil {
		return "", v.bad
	}
	s, ok := v.params[name]
	if !ok {
		return "", adapter.ErrNoParam
	}
	return s, nil
}

func parse(t testing.TB, text string, funcs ...namedFunc) *template {
	t.Helper()
	parsed, err := parseTemplate(text, funcs)
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

func TestTemplateTakesValuesFromEachSource(t *testing.T) {
	type principal struct{}
	ctx := context.WithValue(t.Context(), principal{}, "Ada")
	user := namedFunc{"user", func(ctx context.Context, _ Request) (string, error) {
		return ctx.Value(principal{}).(string), nil
	}}
	req := &values{
		params:  map[string]string{"id": "42", "account.id": "7", "header.id": "h", "header": "plain", "größe": "1"},
		headers: map[string][]string{"X-Tenant": {"acme"}},
		query:   map[string][]string{"year": {"2026"}, "a[b]": {"c"}},
	}
	for text, want := range map[string]string{
		"account/{id}":                  "account/42",
		"{id}":                          "42",
		"{id}/x":                        "42/x",
		"acct-{id}.lock":                "acct-42.lock",
		"account/{account.id}":          "account/7",
		"field/{msg.header.id}":         "field/h",
		"field/{msg.id}":                "field/42",
		"field/{header}":                "field/plain",
		"unicode/{größe}":               "unicode/1",
		"tenant/{header.x-tenant}/{id}": "tenant/acme/42",
		"report/{query.year}":           "report/2026",
		"report/{query.a[b]}":           "report/c",
		"user/{ctx.user}":               "user/Ada",
		"nightly-report":                "nightly-report",
	} {
		got, err := parse(t, text, user).key(ctx, req)
		if err != nil || got != want {
			t.Errorf("%s: %q, %v; want %q", text, got, err, want)
		}
	}
}

func TestBadTemplateIsRefusedWithPlaceAndWhatIsAccepted(t *testing.T) {
	known := namedFunc{"user", func(context.Context, Request) (string, error) { return "", nil }}
	for text, want := range map[string][]string{
		"":                                {"empty template", "account/{id}"},
		"account/{id":                     {"position 9", "never closed", "{header.Name}"},
		"account/{{id}}":                  {"position 9", "never closed"},
		"account/id}":                     {"position 11", "} without a {"},
		"account/{}":                      {"position 9", "name is missing", "{query.name}"},
		"account/{ }":                     {"position 9", "name is missing"},
		"account/{header.}":               {"position 9", "name is missing"},
		"account/{a..b}":                  {"position 9", "empty part between dots"},
		"account/{.a}":                    {"position 9", "empty part"},
		"account/{a b}":                   {"position 9", "letters, digits"},
		"account/{id:[0-9]+}":             {"position 9", `no form "[0-9]+"`, "int, uuid and lower"},
		"account/{id:}":                   {"position 9", `no form ""`},
		"account/{id:Int}":                {"position 9", `no form "Int"`},
		"account/{:int}":                  {"position 9", "name is missing"},
		"account/{a:b:int}":               {"position 9", "letters, digits"},
		"t/{header.X-Tenant:uid}":         {"position 3", `no form "uid"`},
		"t/{header.X:Y:int}":              {"no header has such a name"},
		"q/{query.a:b}":                   {`no form "b"`},
		"account/{*}":                     {"wildcard", "KeyFunc"},
		"account/{path...}":               {"wildcard", "KeyFunc"},
		"account/{header.X Y}":            {"no header has such a name"},
		"account/{query.a b}":             {"not accepted in a name"},
		"account/{ctx.tenant}":            {`{ctx.tenant}`, "no ContextFunc", `core.ContextFunc("tenant", f)`, `["user"]`},
		"account/{a}{b}":                  {"position 12", "second placeholder", "put a / between"},
		"account/{a}-{b}":                 {"position 13", "second placeholder"},
		"/account/{id}":                   {"position 1", "empty segment"},
		"account//{id}":                   {"position 9", "empty segment"},
		"account/":                        {"position 8", "empty segment"},
		"account/:id":                     {"position 9", "':'", "written {name}"},
		"account:{id}":                    {"position 8", "':'", "letters, digits, - . _ ~"},
		"account /{id}":                   {"position 8", "' '"},
		"a%2Fb":                           {"position 2", "'%'"},
		"konto/größe":                     {"position 9", "'ö'"},
		"line\nbreak":                     {"position 5", `'\n'`},
		strings.Repeat("a", 513) + "{id}": {"513 bytes", "at most 512"},
	} {
		_, err := parseTemplate(text, []namedFunc{known})
		if !errors.Is(err, ErrConfig) {
			t.Errorf("%q: %v; want ErrConfig", text, err)
			continue
		}
		for _, part := range want {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%q: %q does not say %q", text, err, part)
			}
		}
	}
}

func TestMissingEmptyDoubledAndMalformedValuesAreTheClientsFault(t *testing.T) {
	long := strings.Repeat("x", 512)
	for name, c := range map[string]struct {
		text string
		req  values
	}{
		"param empty":      {"a/{id}", values{params: map[string]string{"id": ""}}},
		"param malformed":  {"a/{id}", values{bad: url.EscapeError("%zz")}},
		"header missing":   {"a/{header.X}", values{}},
		"header empty":     {"a/{header.X}", values{headers: map[string][]string{"X": {""}}}},
		"header twice":     {"a/{header.X}", values{headers: map[string][]string{"X": {"1", "2"}}}},
		"query missing":    {"a/{query.q}", values{}},
		"query empty":      {"a/{query.q}", values{query: map[string][]string{"q": {""}}}},
		"query twice":      {"a/{query.q}", values{query: map[string][]string{"q": {"1", "1"}}}},
		"context empty":    {"a/{ctx.none}", values{}},
		"too long":         {"a/{id}", values{params: map[string]string{"id": long}}},
		"too long escaped": {"a/{id}", values{params: map[string]string{"id": strings.Repeat("/", 171)}}},
		"too long by tail": {"{id}/a", values{params: map[string]string{"id": long}}},
	} {
		none := namedFunc{"none", func(context.Context, Request) (string, error) { return "", nil }}
		key, err := parse(t, c.text, none).key(t.Context(), &c.req)
		if key != "" || !errors.Is(err, ErrKey) || ReasonOf(t.Context(), err) != reason.BadKey {
			t.Errorf("%s: %q, %v; want ErrKey", name, key, err)
		}
		if err != nil && strings.Contains(err.Error(), "xxx") {
			t.Errorf("%s: the error repeats the value: %v", name, err)
		}
	}
}

func TestValueThatDidNotComeBeforeTheEndOfTheCallIsNobodysFault(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := parse(t, "a/{id}").key(ctx, &values{bad: errors.New("connection reset")})
	if err == nil || errors.Is(err, ErrKey) || ReasonOf(ctx, err) != reason.Canceled {
		t.Errorf("%v; want an error that is no ErrKey", err)
	}
}

func TestParameterThatTheRouteDoesNotHaveIsTheServersFault(t *testing.T) {
	_, err := parse(t, "a/{id}").key(t.Context(), &values{})
	if !errors.Is(err, adapter.ErrNoParam) || ReasonOf(t.Context(), err) != reason.Misconfigured {
		t.Errorf("%v; want adapter.ErrNoParam", err)
	}
	for _, part := range []string{"{id}", "/some/route"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not name %s", err, part)
		}
	}
}

func TestKeyOf512EscapedBytesIsAccepted(t *testing.T) {
	req := &values{params: map[string]string{"id": strings.Repeat("/", 170)}} // 2 + 510
	key, err := parse(t, "a/{id}").key(t.Context(), req)
	if err != nil || len(key) != 512 {
		t.Errorf("%d bytes, %v; want 512", len(key), err)
	}
	if _, err := Key(strings.Repeat("/", 171)); !errors.Is(err, ErrKey) {
		t.Errorf("Key of 513 bytes: %v; want ErrKey", err)
	}
}

func TestKeyRefusesEmptySegments(t *testing.T) {
	for _, segments := range [][]string{nil, {""}, {"account", ""}, {"", "42"}} {
		if key, err := Key(segments...); key != "" || !errors.Is(err, ErrKey) {
			t.Errorf("Key(%q) = %q, %v; want ErrKey", segments, key, err)
		}
	}
}

func TestHostileValuesStayInTheirSegment(t *testing.T) {
	for value, want := range map[string]string{
		"a/b":           "account/a%2Fb",
		"../x":          "account/..%2Fx",
		"%2F":           "account/%252F",
		"{id}":          "account/%7Bid%7D",
		"}":             "account/%7D",
		"a b":           "account/a%20b",
		"a\r\nb":        "account/a%0D%0Ab",
		"\x00":          "account/%00",
		"\xff":          "account/%FF",
		"ö":             "account/%C3%B6",
		"o\u0308":       "account/o%CC%88", // not normalized: other bytes, another key
		"A":             "account/A",
		"a:b":           "account/a%3Ab",
		"a-b.c_d~e":     "account/a-b.c_d~e",
		"\u202e\u200b":  "account/%E2%80%AE%E2%80%8B",
		"interlock:{x}": "account/interlock%3A%7Bx%7D",
	} {
		got, err := parse(t, "account/{id}").key(t.Context(), &values{params: map[string]string{"id": value}})
		if err != nil || got != want {
			t.Errorf("%q: %q, %v; want %q", value, got, err, want)
		}
	}
}

// checkKeyOf holds a key of n segments against what every key must be.
func checkKeyOf(t *testing.T, key string, segments ...string) {
	t.Helper()
	parts := strings.Split(key, "/")
	if len(parts) != len(segments) {
		t.Fatalf("%q has %d segments; want %d", key, len(parts), len(segments))
	}
	for i, part := range parts {
		if strings.Trim(part, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~%") != "" {
			t.Fatalf("%q holds a byte that should be escaped", key)
		}
		if back, err := url.PathUnescape(part); err != nil || back != segments[i] {
			t.Fatalf("segment %q decodes to %q, %v; want %q", part, back, err, segments[i])
		}
	}
	if built, err := Key(segments...); err != nil || built != key {
		t.Fatalf("Key(%q) = %q, %v; the template makes %q", segments, built, err, key)
	}
}

// No two different tuples of values make the same key, from any source, and Key makes
// the same key from the same segments as the template.
func FuzzTemplateValuesNeverCollide(f *testing.F) {
	for _, s := range [][4]string{
		{"1", "2", "1", "2"},
		{"a/b", "c", "a", "b/c"},
		{"a%2Fb", "c", "a/b", "c"},
		{"1-2", "3", "1", "2-3"},
		{"{b}", "}", "{", "b}"},
		{"\r\n", "\x00", "%0D%0A", "%00"},
		{"ö", "o\u0308", "\xf6", "o"},
	} {
		f.Add(s[0], s[1], s[2], s[3])
	}
	tmpl := parse(f, "from/{a}/to-{header.B}")
	f.Fuzz(func(t *testing.T, a1, b1, a2, b2 string) {
		build := func(a, b string) (string, bool) {
			req := &values{params: map[string]string{"a": a}, headers: map[string][]string{"B": {b}}}
			key, err := tmpl.key(t.Context(), req)
			if err != nil {
				if !errors.Is(err, ErrKey) || a != "" && b != "" && 3*(len(a)+len(b)) < 400 {
					t.Fatalf("%q, %q: %v", a, b, err)
				}
				return "", false
			}
			checkKeyOf(t, key, "from", a, "to-"+b)
			return key, true
		}
		k1, ok1 := build(a1, b1)
		k2, ok2 := build(a2, b2)
		if ok1 && ok2 && (k1 == k2) != (a1 == a2 && b1 == b2) {
			t.Fatalf("(%q, %q) makes %q, (%q, %q) makes %q", a1, b1, k1, a2, b2, k2)
		}
	})
}

// Whatever text is given as a template, it is refused with ErrConfig or makes
// keys of exactly its segments.
func FuzzTemplateIsRefusedOrMakesItsSegments(f *testing.F) {
	for _, s := range []string{
		"account/{id}", "{a}/{b}", "a-{header.X}.b/{query.q}", "{a}{b}", "//", "{", "}", "{{}}", "x/{msg.a.b}", "{ctx.u}",
	} {
		f.Add(s)
	}
	user := namedFunc{"u", func(context.Context, Request) (string, error) { return "/v}", nil }}
	f.Fuzz(func(t *testing.T, text string) {
		tmpl, err := parseTemplate(text, []namedFunc{user})
		if err != nil {
			if !errors.Is(err, ErrConfig) {
				t.Fatalf("%q: %v; want ErrConfig", text, err)
			}
			return
		}
		key, err := tmpl.key(t.Context(), everything{})
		if err != nil {
			if !errors.Is(err, ErrKey) || len(text) < 100 {
				t.Fatalf("%q: %v", text, err)
			}
			return
		}
		// The segments that a reader of the template expects.
		want, back := text, ""
		for _, p := range tmpl.vars {
			if !strings.Contains(want, p.text) {
				t.Fatalf("%q is not in %q", p.text, want)
			}
			want = strings.Replace(want, p.text, "\x00", 1)
			back += p.literal + p.text
		}
		if back += tmpl.tail; back != text {
			t.Fatalf("%q was read as %q", text, back)
		}
		segments := strings.Split(want, "/")
		for i := range segments {
			segments[i] = strings.Replace(segments[i], "\x00", "/v}", 1)
		}
		checkKeyOf(t, key, segments...)
	})
}

// everything is a request that has any value.
type everything struct{}

func (everything) Route() (string, bool)        { return "/", true }
func (everything) Param(string) (string, error) { return "/v}", nil }
func (everything) Header(string) []string       { return []string{"/v}"} }
func (everything) Query(string) []string        { return []string{"/v}"} }
func (everything) Body(int64) ([]byte, error)   { return nil, nil }
func (everything) Native() any                  { return nil }
func (everything) Value(any) any                { return "/v}" }

func TestKeyIsTheOnlyAllocationOfATemplate(t *testing.T) {
	tmpl := parse(t, "tenant/{header.X-Tenant}/account/{id}")
	req := &values{params: map[string]string{"id": "a/b"}, headers: map[string][]string{"X-Tenant": {"acme"}}}
	n := testing.AllocsPerRun(100, func() {
		if _, err := tmpl.key(t.Context(), req); err != nil {
			t.Fatal(err)
		}
	})
	if n > 1 {
		t.Errorf("%v allocations; want 1", n)
	}
}

func BenchmarkTemplate(b *testing.B) {
	tmpl := parse(b, "account/{id}")
	req := &values{params: map[string]string{"id": "0b7c62f4-8d1e-4c39-9d7a-5f1f3f6f2a10"}}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := tmpl.key(b.Context(), req); err != nil {
			b.Fatal(err)
		}
	}
}
