package idempotency

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// EqualJSON compares the bodies of requests as JSON: two bodies are equal that differ in
// white space, in the order of names, in escapes, or in how a number is written (1, 1.0,
// 10e-1). The order of elements counts, and null is not an absent name. Numbers are compared
// with all their digits. A body that is no JSON text, is nested more than 100 deep, has
// a name twice in one object (in any case), or has text that is no Unicode is compared
// byte by byte. A function given to [Fingerprint] gets the body in one canonical form.
// Records made without the option count as records of other requests ([reason.KeyReused]).
// Default: off; bodies are compared byte by byte.
func EqualJSON() Option {
	return func(c *config) { c.equalJSON = true }
}

// canonicalJSON returns one text for all JSON texts that are equal, and the body itself if
// it has none. The result may share its memory with the body.
func canonicalJSON(body []byte) []byte {
	if !utf8.Valid(body) || !json.Valid(body) {
		return body
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	b, err := appendValue(make([]byte, 0, len(body)), d, maxDepth)
	if err != nil {
		return body
	}
	return b
}

// maxDepth bounds the cost of a body: each level copies its contents.
const maxDepth = 100

// errNoForm says that a JSON text has no canonical form: decoders read it in more than one
// way, or it is nested too deep.
var errNoForm = errors.New("interlock: a JSON text without a canonical form")

// appendValue appends the next value of d, which may be nested depth deep.
func appendValue(b []byte, d *json.Decoder, depth int) ([]byte, error) {
	token, err := d.Token()
	if err != nil {
		return nil, err
	}
	if depth == 0 {
		return nil, errNoForm
	}
	switch t := token.(type) {
	case json.Delim:
		if t == '[' {
			return appendArray(b, d, depth-1)
		}
		return appendObject(b, d, depth-1)
	case string:
		return appendText(b, t)
	case json.Number:
		return appendNumber(b, t.String()), nil
	case bool:
		return strconv.AppendBool(b, t), nil
	default:
		return append(b, "null"...), nil
	}
}

func appendArray(b []byte, d *json.Decoder, depth int) (_ []byte, err error) {
	b = append(b, '[')
	for i := 0; d.More(); i++ {
		if i > 0 {
			b = append(b, ',')
		}
		if b, err = appendValue(b, d, depth); err != nil {
			return nil, err
		}
	}
	_, err = d.Token() // the closing bracket
	return append(b, ']'), err
}

func appendObject(b []byte, d *json.Decoder, depth int) (_ []byte, err error) {
	type member struct{ name, text string }
	var members []member
	names := map[string]bool{}
	for d.More() {
		token, err := d.Token()
		if err != nil {
			return nil, err
		}
		name, _ := token.(string)
		// encoding/json fills a field by a name in any case, and by the last of several.
		folded := strings.ToLower(strings.ToUpper(name))
		if names[folded] {
			return nil, errNoForm
		}
		names[folded] = true
		text, err := appendText(nil, name)
		if err != nil {
			return nil, err
		}
		if text, err = appendValue(append(text, ':'), d, depth); err != nil {
			return nil, err
		}
		members = append(members, member{name, string(text)})
	}
	if _, err = d.Token(); err != nil { // the closing brace
		return nil, err
	}
	slices.SortFunc(members, func(x, y member) int { return strings.Compare(x.name, y.name) })
	b = append(b, '{')
	for i, m := range members {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, m.text...)
	}
	return append(b, '}'), nil
}

func appendText(b []byte, s string) ([]byte, error) {
	if strings.ContainsRune(s, utf8.RuneError) { // it may stand for half of a surrogate pair
		return nil, errNoForm
	}
	text, err := json.Marshal(s)
	return append(b, text...), err
}

// appendNumber appends a number as an integer without zeros at its ends, and a power of
// ten. The number is never computed: its exponent may be a million.
func appendNumber(b []byte, number string) []byte {
	digits, exponent := number, int64(0)
	if i := strings.IndexAny(number, "eE"); i >= 0 {
		var err error
		if exponent, err = strconv.ParseInt(number[i+1:], 10, 32); err != nil {
			return append(b, number...) // larger than all that is meant: as it is written
		}
		digits = number[:i]
	}
	digits, negative := strings.CutPrefix(digits, "-")
	whole, fraction, _ := strings.Cut(digits, ".")
	exponent -= int64(len(fraction))
	digits = strings.TrimLeft(whole+fraction, "0")
	short := strings.TrimRight(digits, "0")
	exponent += int64(len(digits) - len(short))
	if short == "" { // RFC 8785, 3.2.2.3: no sign
		return append(b, '0')
	}
	if negative {
		b = append(b, '-')
	}
	b = append(b, short...)
	if exponent == 0 {
		return b
	}
	return strconv.AppendInt(append(b, 'e'), exponent, 10)
}
