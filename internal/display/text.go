package display

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Text returns a text that a terminal, JSON and a page can show in safety. Unprintable
// parts (control characters, the ANSI escape, marks that change the direction of
// writing, bytes that are no UTF-8) are shown as in a Go string: \x1b, \u202e. So is a
// backslash, as \\: no two texts look the same, and [Parse] leads back. Spaces other
// than U+0020 are not printable.
func Text(s string) string {
	if plain(s) {
		return s
	}
	var b strings.Builder
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, s[0])
		case r == '\\':
			b.WriteString(`\\`)
		case printable(r):
			b.WriteString(s[:n])
		default:
			quoted := strconv.QuoteRuneToASCII(r)
			b.WriteString(quoted[1 : len(quoted)-1])
		}
		s = s[n:]
	}
	return b.String()
}

// Message is [Text] for a sentence of a program, such as an error: a backslash stays as it is,
// because it is the escape of a text that the sentence quotes already.
func Message(s string) string {
	parts := strings.Split(s, `\`)
	for i, part := range parts {
		parts[i] = Text(part)
	}
	return strings.Join(parts, `\`)
}

// plain reports whether a text is shown as it is.
func plain(s string) bool {
	for _, r := range s {
		if r == '\\' || !printable(r) {
			return false
		}
	}
	return utf8.ValidString(s)
}

// printable leaves out invisible characters: all that strconv leaves out, and letters that
// are shown as nothing (Hangul fillers).
func printable(r rune) bool {
	switch r {
	case '\u115f', '\u1160', '\u3164', '\uffa0', '\u034f', '\u17b4', '\u17b5':
		return false
	}
	return strconv.IsPrint(r)
}

// Parse reads a text as [Text] shows it: a shown text can be typed. The error says which
// backslash is wrong.
func Parse(s string) (string, error) {
	var b strings.Builder
	rest := s
	for rest != "" {
		at := strings.IndexByte(rest, '\\')
		if at < 0 {
			b.WriteString(rest)
			break
		}
		b.WriteString(rest[:at])
		r, multibyte, tail, err := strconv.UnquoteChar(rest[at:], 0)
		if err != nil {
			return "", fmt.Errorf("%q: the backslash before %q begins no escape; a backslash itself is written \\\\",
				s, rest[at+1:])
		}
		if r < utf8.RuneSelf || !multibyte {
			b.WriteByte(byte(r)) //nolint:gosec // a byte: it is no multibyte character
		} else {
			b.WriteRune(r)
		}
		rest = tail
	}
	return b.String(), nil
}
