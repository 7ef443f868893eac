package fleet

import (
	"regexp"
	"strings"
	"testing"
)

func FuzzFits(f *testing.F) {
	for _, s := range [][2]string{{"", ""}, {"a*", "ab"}, {"*b*c", "abbc"}, {"?", "x"}, {"**", ""}, {"a?c*", "abcd"}, {"a", "b"}} {
		f.Add(s[0], s[1])
	}
	f.Fuzz(func(t *testing.T, pattern, key string) {
		if len(pattern) > 30 || len(key) > 100 {
			return
		}
		var expr strings.Builder
		expr.WriteString(`^(?s:`)
		for i := range len(pattern) {
			switch c := pattern[i]; c {
			case '*':
				expr.WriteString(`.*`)
			case '?':
				expr.WriteString(`.`)
			default:
				expr.WriteString(regexp.QuoteMeta(string(rune(c))))
			}
		}
		expr.WriteString(`)$`)
		// As Latin-1, of which a byte is a character.
		latin := make([]rune, len(key))
		for i := range len(key) {
			latin[i] = rune(key[i])
		}
		want := regexp.MustCompile(expr.String()).MatchString(string(latin))
		if got := fits(pattern, key); got != want {
			t.Errorf("fits(%q, %q) = %v", pattern, key, got)
		}
		begin, all := literal(pattern)
		if want && !strings.HasPrefix(key, begin) {
			t.Errorf("%q fits %q, and does not begin with %q", key, pattern, begin)
		}
		if pattern != "" && all && strings.HasPrefix(key, begin) && !want {
			t.Errorf("every key that begins with %q fits %q, but %q does not", begin, pattern, key)
		}
	})
}

func TestNoPatternTakesLong(t *testing.T) {
	if fits(strings.Repeat("a*", 200)+"b", strings.Repeat("a", 512)) {
		t.Error("fits")
	}
}
