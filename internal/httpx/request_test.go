package httpx_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/interlock-go/interlock/core/adapter"
	"github.com/interlock-go/interlock/internal/httpx"
)

func TestPatternNamesItsParametersAndNoRemainingPath(t *testing.T) {
	for _, c := range []struct {
		pattern, name string
		want          bool
	}{
		{"POST /accounts/{id}/debit", "id", true},
		{"/{idx}/{id}", "id", true},
		{"/{id:[0-9]{3}}", "id", true}, // chi
		{"/{idx}", "id", false},
		{"/{path...}", "path", false},
		{"/{path...}", "pat", false},
		{"/{id", "id", false},
		{"", "id", false},
	} {
		if got := httpx.Names(c.pattern, c.name); got != c.want {
			t.Errorf("Names(%q, %q) = %v", c.pattern, c.name, got)
		}
	}
}

// A router behind a middleware notes the route on the request that it gets, for an access log in front.
func TestTheRouteIsHandedBack(t *testing.T) {
	route := func(r *http.Request, pattern string, values ...string) *http.Request {
		r.Pattern = pattern
		for i := 0; i < len(values); i += 2 {
			r.SetPathValue(values[i], values[i+1])
		}
		return r
	}
	for name, c := range map[string]struct {
		before, after string // patterns
		noted         []string
		pattern       string
		want          map[string]string
	}{
		"ServeMux":          {"", "POST /a/{id}/{rest...}", []string{"id", "7", "rest", "b/c"}, "POST /a/{id}/{rest...}", map[string]string{"id": "7", "rest": "b/c", "front": "f"}},
		"chi":               {"", "/a/{id:[0-9]{1,3}}/*", []string{"id", "7", "*", "b/c"}, "/a/{id:[0-9]{1,3}}/*", map[string]string{"id": "7", "*": "b/c"}},
		"a router in front": {"/{front}/", "/a/{front}", []string{"front", "g"}, "/a/{front}", map[string]string{"front": "g"}},
		"an empty value":    {"/{front}/", "/a/{front...}", []string{"front", ""}, "/a/{front...}", map[string]string{"front": ""}},
		"the end of a path": {"", "/a/{$}", nil, "/a/{$}", map[string]string{"$": "", "front": "f"}},
		"a broken pattern":  {"", "/a/{id", nil, "/a/{id", map[string]string{"front": "f"}},
		"no router":         {"/{front}/", "/{front}/", nil, "/{front}/", map[string]string{"front": "f"}},
		"another request":   {"/{front}/", "", nil, "/{front}/", map[string]string{"front": "f"}},
	} {
		original := route(httptest.NewRequestWithContext(t.Context(), "POST", "/a/7/b/c", nil), c.before, "front", "f")
		derived := route(original.Clone(t.Context()), c.after, c.noted...)
		httpx.HandBack(original, derived)
		if original.Pattern != c.pattern {
			t.Errorf("%s: the pattern is %q; expected is %q", name, original.Pattern, c.pattern)
		}
		for value, want := range c.want {
			if got := original.PathValue(value); got != want {
				t.Errorf("%s: the path value %q is %q; expected is %q", name, value, got, want)
			}
		}
	}
}

func TestBodyIsReadWithinItsLimitAndPutBack(t *testing.T) {
	broken := errors.New("broken")
	for name, c := range map[string]struct {
		body  io.Reader
		limit int64
		want  string
		err   error
		again string
	}{
		"none":            {nil, 10, "", nil, ""},
		"shorter":         {strings.NewReader("abc"), 10, "abc", nil, "abc"},
		"just as long":    {strings.NewReader("abc"), 3, "abc", nil, "abc"},
		"longer":          {strings.NewReader("abcd"), 3, "", adapter.ErrBodyLimit, "abcd"},
		"no limit":        {strings.NewReader("abc"), 1<<63 - 1, "abc", nil, "abc"},
		"limit of others": {http.MaxBytesReader(nil, io.NopCloser(strings.NewReader("abcd")), 3), 10, "", adapter.ErrBodyLimit, "abc"},
		"broken":          {io.MultiReader(strings.NewReader("ab"), errReader{broken}), 10, "", adapter.ErrBody, "ab"},
	} {
		r := httptest.NewRequestWithContext(t.Context(), "POST", "/", c.body)
		got, err := httpx.Request{Request: r}.Body(c.limit)
		if string(got) != c.want || !errors.Is(err, c.err) {
			t.Errorf("%s: %q, %v; want %q, %v", name, got, err, c.want, c.err)
		}
		if again, _ := io.ReadAll(r.Body); string(again) != c.again {
			t.Errorf("%s: the handler reads %q; want %q", name, again, c.again)
		}
		if err := r.Body.Close(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

type errReader struct{ err error }

func (r errReader) Read([]byte) (int, error) { return 0, r.err }
