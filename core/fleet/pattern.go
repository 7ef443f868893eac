package fleet

import "strings"

// literal returns the common beginning of all keys that fit a pattern, and whether
// every key with that beginning fits.
func literal(pattern string) (begin string, all bool) {
	at := strings.IndexAny(pattern, "*?")
	switch {
	case pattern == "":
		return "", true
	case at < 0:
		return pattern, false
	}
	return pattern[:at], pattern[at:] == "*"
}

// fits reports whether a key fits a pattern. It goes back to the last asterisk only, so
// that no pattern takes longer than the product of the two lengths.
func fits(pattern, key string) bool {
	p, k, star, from := 0, 0, -1, 0
	for k < len(key) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, from = p, k
			p++
		case p < len(pattern) && (pattern[p] == '?' || pattern[p] == key[k]):
			p++
			k++
		case star >= 0:
			from++
			p, k = star+1, from
		default:
			return false
		}
	}
	return strings.Trim(pattern[p:], "*") == ""
}

// exactly reports whether a pattern fits one key alone.
func exactly(pattern string) bool { return pattern != "" && !strings.ContainsAny(pattern, "*?") }
