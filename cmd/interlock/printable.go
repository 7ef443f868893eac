package main

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// printable returns a text that can be shown on a terminal whatever is in it. What is not
// printable (control characters, the ANSI escape, marks that change the direction of
// writing, bytes that are no UTF-8) is shown as in a Go string: \x1b, \u202e. So is a
// backslash, as \\: no two texts look the same. A text that is returned unchanged has
// nothing of that.
func printable(s string) string {
	if plain(s) {
		return s
	}
	var b strings.Builder
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && n == 1:
			b.WriteString(`\x`)
			const digits = "0123456789abcdef"
			b.WriteByte(digits[s[0]>>4])
			b.WriteByte(digits[s[0]&15])
		case r == '\\':
			b.WriteString(`\\`)
		case strconv.IsPrint(r):
			b.WriteString(s[:n])
		default:
			quoted := strconv.QuoteRuneToASCII(r)
			b.WriteString(quoted[1 : len(quoted)-1])
		}
		s = s[n:]
	}
	return b.String()
}

// plain reports whether a text is shown as it is.
func plain(s string) bool {
	for i, r := range s {
		if r == '\\' || !strconv.IsPrint(r) {
			return false
		}
		if r == utf8.RuneError {
			if _, n := utf8.DecodeRuneInString(s[i:]); n == 1 {
				return false
			}
		}
	}
	return true
}
