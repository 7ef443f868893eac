package capture

import (
	"net/url"
	"slices"
	"strings"
	"testing"
)

// FuzzTarget checks that two paths are one target exactly if their segments have
// the same values, however the client has escaped them: else a request would get
// the response of another, or a request that is sent again be refused.
func FuzzTarget(f *testing.F) {
	for _, s := range [][2]string{
		{"/a/b", "/a%2Fb"},
		{"/%61", "/a"},
		{"/a%25", "/a%2525"},
		{"/a%2fb", "/a%2Fb"},
		{"/%252F/x", "/%2F/x"},
		{"/a%20b", "/a+b"},
		{"//", "/"},
		{"/a;b", "/a%3Bb"},
		{"", "*"},
		{"/%", "/\xff"},
		{"/%FF/%2f", "/\xff/%2F"},
	} {
		f.Add(s[0], s[1])
	}
	target := func(text string) (path string, segments []string, ok bool) {
		u, err := url.ParseRequestURI(text)
		if err != nil {
			return "", nil, false
		}
		for s := range strings.SplitSeq(u.EscapedPath(), "/") {
			v, err := url.PathUnescape(s)
			if err != nil {
				return "", nil, false
			}
			segments = append(segments, v)
		}
		return canonical(u), segments, true
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		pathA, segmentsA, okA := target(a)
		pathB, segmentsB, okB := target(b)
		if okA && okB && (pathA == pathB) != slices.Equal(segmentsA, segmentsB) {
			t.Errorf("%q is %q, %q is %q", a, pathA, b, pathB)
		}
	})
}
