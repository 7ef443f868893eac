package adapter

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"strconv"
	"strings"
)

// JSONParam returns a value of a JSON object as [Request].Param returns it, for adapters
// with parameters in JSON. The path of a value in a nested object has dots. A value that is
// missing or null is empty, as is every value of a document that is empty.
//
// A string is its text, and a boolean is true or false. A number is a whole number below
// 2^53 (RFC 8259, 6): 42, 42.0 and 4.2e1 are one value, 42, as they are to a handler that
// decodes into a float64. A greater number can be two values to one handler and one value
// to another, so it is an error, as are a fraction, an object and a list. So is a name that
// is given twice, in any case: which one counts, decoders do not agree.
func JSONParam(object []byte, path string) (string, error) {
	value := json.RawMessage(object)
	for name := range strings.SplitSeq(path, ".") {
		var err error
		if value, err = member(value, name); value == nil {
			return "", err
		}
	}
	d := json.NewDecoder(bytes.NewReader(value))
	d.UseNumber()
	token, err := d.Token()
	switch token := token.(type) {
	case nil:
		return "", err
	case string:
		return token, nil
	case bool:
		return strconv.FormatBool(token), nil
	case json.Number:
		f, err := token.Float64()
		if err != nil || f != math.Trunc(f) || math.Abs(f) >= 1<<53 {
			return "", errors.New("a number that is not whole or not below 2^53: a string names it exactly")
		}
		return strconv.FormatInt(int64(f), 10), nil
	}
	return "", errors.New("an object or a list: accepted are a string, a whole number and a boolean")
}

// member returns the member of an object with a name, nil if there is none.
func member(object json.RawMessage, name string) (value json.RawMessage, err error) {
	d := json.NewDecoder(bytes.NewReader(object))
	if begin, _ := d.Token(); begin != json.Delim('{') {
		return nil, nil
	}
	found := false
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return nil, err
		}
		var v json.RawMessage
		if err := d.Decode(&v); err != nil {
			return nil, err
		}
		text, _ := key.(string)
		if !strings.EqualFold(text, name) {
			continue
		}
		if found || text != name {
			return nil, errors.New("a name that is given twice, or in another case")
		}
		found, value = true, v
	}
	if _, err := d.Token(); err != nil { // the closing brace
		return nil, err
	}
	return value, nil
}
