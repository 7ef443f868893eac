// Package ticket writes what a ticket holds as a text that can stand in a message or a row, and
// reads it again.
package ticket

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"strings"
)

// ClaimKind begins the text of each ticket of a request.
const ClaimKind = "ilclaim1."

// MaxLength is the length of the longest text, in bytes.
const MaxLength = 300

// Why a text is no ticket.
var (
	errLength  = fmt.Errorf("it is longer than %d bytes", MaxLength)
	errKind    = errors.New("it does not begin like a ticket of this kind")
	errText    = errors.New("a character in it is not of a ticket")
	errChanged = errors.New("it was cut off or changed on the way")
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Encode returns the text of a ticket. The kind stands in front of it.
func Encode(kind string, body []byte) string {
	summed := binary.BigEndian.AppendUint32(append([]byte(nil), body...), sum(kind, body))
	return kind + base64.RawURLEncoding.EncodeToString(summed)
}

// Decode returns what a ticket of a kind holds. The error has no part of the text.
func Decode(kind, text string) ([]byte, error) {
	if len(text) > MaxLength {
		return nil, errLength
	}
	coded, found := strings.CutPrefix(text, kind)
	if !found {
		return nil, errKind
	}
	summed, err := base64.RawURLEncoding.Strict().DecodeString(coded)
	n := len(summed) - 4
	switch {
	case strings.ContainsAny(coded, "\r\n"): // the decoder leaves them out
		return nil, errText
	case err != nil && strings.Trim(coded, alphabet) != "":
		return nil, errText
	case err != nil, n < 0, sum(kind, summed[:max(n, 0)]) != binary.BigEndian.Uint32(summed[max(n, 0):]):
		return nil, errChanged
	}
	return summed[:n], nil
}

const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"

func sum(kind string, body []byte) uint32 {
	return crc32.Update(crc32.Checksum([]byte(kind), castagnoli), castagnoli, body)
}
