package core

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Form says which texts name one resource. A placeholder with a form, {id:int},
// puts the canonical text of its value into the key. Without a form, values are
// compared as they come: /accounts/42 and /accounts/042 are two locks, though a
// handler that parses numbers takes both for one account.
//
// A value that is not of the form refuses the request as a mistake of the client
// ([reason.BadKey]). The handler gets the value as it came.
type Form string

// The forms of a placeholder.
const (
	// FormInt is an integer in decimal digits, of any length, with or without a
	// sign: the texts that [strconv.ParseInt] accepts in base 10. Its canonical
	// text has no leading zeros and no "+": 42 for 042 and +42, and 0 for -0.
	FormInt Form = "int"
	// FormUUID is a UUID (RFC 9562) with or without hyphens, braces or urn:uuid:,
	// in upper or lower case. Its canonical text has hyphens and lower case.
	FormUUID Form = "uuid"
	// FormLower is text in UTF-8 without regard to case. Values that [strings.EqualFold]
	// takes for equal have one canonical text, in lower case. The text is not normalized: é
	// as one character and é as two are two values.
	FormLower Form = "lower"
)

// acceptedForms is for error messages.
const acceptedForms = "accepted forms are int, uuid and lower"

// Canonical returns the canonical text of a value: the text that a template with
// this form puts into its key. A batch job passes it to [Key]:
//
//	id, err := core.FormInt.Canonical(field) // account/{id:int}
//	if err != nil {
//		return err
//	}
//	key, err := core.Key("account", id)
//
// A value that is canonical already does not need it, for example the result of
// [strconv.FormatInt] or of the String method of the usual UUID packages.
//
// The error matches [ErrKey] and does not show the value. For a Form that is none
// of the constants it matches [ErrConfig].
func (f Form) Canonical(value string) (string, error) {
	var text string
	ok := false
	switch f {
	case FormInt:
		text, ok = canonicalInt(value)
	case FormUUID:
		text, ok = canonicalUUID(value)
	case FormLower:
		text, ok = canonicalLower(value)
	default:
		return "", fmt.Errorf("%w: form %q; %s", ErrConfig, string(f), acceptedForms)
	}
	if !ok {
		return "", fmt.Errorf("%w: a value is not of the form %s", ErrKey, f)
	}
	return text, nil
}

func (f Form) known() bool { return f == FormInt || f == FormUUID || f == FormLower }

func canonicalInt(s string) (string, bool) {
	digits, negative := strings.CutPrefix(s, "-")
	if !negative {
		digits = strings.TrimPrefix(s, "+")
	}
	if digits == "" || strings.Trim(digits, "0123456789") != "" {
		return "", false
	}
	digits = strings.TrimLeft(digits, "0")
	switch {
	case digits == "":
		return "0", true
	case negative:
		return s[:1] + digits, true // of "-", not "+" or ""
	}
	return digits, true
}

// canonicalUUID accepts every notation that a usual package parses: a handler may use
// any of them.
func canonicalUUID(s string) (string, bool) {
	switch {
	case len(s) == 36+9 && strings.EqualFold(s[:9], "urn:uuid:"):
		s = s[9:]
	case len(s) == 36+2 && s[0] == '{' && s[37] == '}':
		s = s[1:37]
	}
	hyphens := len(s) == 36
	if !hyphens && len(s) != 32 {
		return "", false
	}
	var room [36]byte
	text := room[:0]
	for i := range len(s) {
		if hyphens && (i == 8 || i == 13 || i == 18 || i == 23) {
			if s[i] != '-' {
				return "", false
			}
			continue
		}
		b := s[i]
		switch {
		case '0' <= b && b <= '9', 'a' <= b && b <= 'f':
		case 'A' <= b && b <= 'F':
			b += 'a' - 'A'
		default:
			return "", false
		}
		switch len(text) {
		case 8, 13, 18, 23:
			text = append(text, '-')
		}
		text = append(text, b)
	}
	return string(text), true
}

func canonicalLower(s string) (string, bool) {
	if !utf8.ValidString(s) {
		return "", false
	}
	return strings.Map(folded, s), true
}

// folded returns one rune for all that strings.EqualFold takes for equal: the
// lower case of the least of them, s for S, s and ſ.
func folded(r rune) rune {
	if r < utf8.RuneSelf {
		if 'A' <= r && r <= 'Z' {
			r += 'a' - 'A'
		}
		return r
	}
	least := r
	for next := unicode.SimpleFold(r); next != r; next = unicode.SimpleFold(next) {
		least = min(least, next)
	}
	lower := unicode.ToLower(least)
	for next := unicode.SimpleFold(least); next != least; next = unicode.SimpleFold(next) {
		if next == lower {
			return lower
		}
	}
	return least // another rune has the same lower case: İ and I both become i
}
