package idempotency

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"slices"
	"strings"
	"unsafe"

	"github.com/interlock-go/interlock/core/idempotency/endpoint"
)

// A stored response is one envelope:
//
//	version   1 byte: 1
//	protocol  string
//	status    uvarint
//	header    fields
//	trailer   fields
//	body      string
//	checksum  CRC-32C of all before it, 4 bytes, big-endian
//
// A string is its length as a uvarint and its bytes. Fields are their number and
// for each the name, the number of values and the values. Another version has
// another first byte; what does not read as a version that is known, to its last
// byte, is damaged.
const envelopeVersion = 1

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// encode makes the envelope of a response, without the header fields that keep
// refuses.
func encode(protocol string, r endpoint.Response, keep func(name string) bool) []byte {
	header, trailer := kept(r.Header, keep), kept(r.Trailer, keep)
	size := 1 + binary.MaxVarintLen32 + len(protocol) + binary.MaxVarintLen64 + sizeOfFields(r.Header, header) +
		sizeOfFields(r.Trailer, trailer) + binary.MaxVarintLen64 + len(r.Body) + 4
	b := make([]byte, 0, size)
	b = append(b, envelopeVersion)
	b = appendString(b, protocol)
	b = binary.AppendUvarint(b, uint64(max(r.Status, 0)))
	b = appendFields(b, r.Header, header)
	b = appendFields(b, r.Trailer, trailer)
	b = binary.AppendUvarint(b, uint64(len(r.Body)))
	b = append(b, r.Body...)
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// kept lists the names that are stored, sorted: one response has one envelope.
func kept(fields map[string][]string, keep func(string) bool) []string {
	names := make([]string, 0, len(fields))
	for name := range fields {
		if keep(name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func sizeOfFields(fields map[string][]string, names []string) int {
	n := binary.MaxVarintLen32
	for _, name := range names {
		n += len(name) + 2*binary.MaxVarintLen32
		for _, v := range fields[name] {
			n += len(v) + binary.MaxVarintLen32
		}
	}
	return n
}

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func appendFields(b []byte, fields map[string][]string, names []string) []byte {
	b = binary.AppendUvarint(b, uint64(len(names)))
	for _, name := range names {
		b = appendString(b, name)
		values := fields[name]
		b = binary.AppendUvarint(b, uint64(len(values)))
		for _, v := range values {
			b = appendString(b, v)
		}
	}
	return b
}

// damaged says why a record counts as damaged. The reason is the last that the error wraps: logs
// have the root cause (observe.RootCause).
func damaged(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrDamaged, fmt.Errorf(format, args...))
}

// decode reads an envelope; an empty protocol stands for each. Nothing of it is copied: names and values of fields
// are parts of it, and so is the body, which must not be written to.
func decode(protocol, envelope string) (*endpoint.Response, error) {
	if envelope == "" {
		return nil, damaged("empty")
	}
	if envelope[0] != envelopeVersion {
		return nil, damaged("version %d", envelope[0])
	}
	end := len(envelope) - 4
	if end < 1 {
		return nil, damaged("%d bytes", len(envelope))
	}
	all := bytesOf(envelope)
	if crc32.Checksum(all[:end], castagnoli) != binary.BigEndian.Uint32(all[end:]) {
		return nil, damaged("wrong checksum")
	}
	d := decoder{rest: envelope[1:end]}
	written := d.text()
	r := &endpoint.Response{Status: d.number(math.MaxInt32)}
	r.Header, r.Trailer = d.fields(), d.fields()
	if body := d.text(); body != "" {
		r.Body = bytesOf(body)
	}
	switch {
	case d.bad || d.rest != "":
		return nil, damaged("lengths that do not fit")
	case protocol != "" && written != protocol:
		return nil, damaged("written for another protocol")
	}
	return r, nil
}

// bytesOf is a string as bytes that are only read, so it needs no copy.
func bytesOf(s string) []byte {
	return unsafe.Slice(unsafe.StringData(s), len(s))
}

// decoder reads from the front of a string, and notes when it cannot.
type decoder struct {
	rest string
	bad  bool
}

// number reads a number that is at most limit.
func (d *decoder) number(limit int) int {
	var n uint64
	for i := 0; i < len(d.rest) && i < binary.MaxVarintLen64; i++ {
		c := d.rest[i]
		if i == binary.MaxVarintLen64-1 && c > 1 {
			break // more than 64 bits
		}
		n |= uint64(c&0x7f) << (7 * i)
		if c < 0x80 {
			d.rest = d.rest[i+1:]
			if n > uint64(limit) { //nolint:gosec // limit is not negative
				break
			}
			return int(n) //nolint:gosec // at most limit
		}
	}
	d.bad, d.rest = true, ""
	return 0
}

func (d *decoder) text() string {
	n := d.number(len(d.rest))
	if n > len(d.rest) { // the length itself took some of it
		d.bad, d.rest = true, ""
		return ""
	}
	s := d.rest[:n]
	d.rest = d.rest[n:]
	return s
}

// fields reads fields. No number in it makes room for more than there can be: a
// name and its number of values take two bytes, a value one.
func (d *decoder) fields() map[string][]string {
	n := d.number(len(d.rest) / 2)
	if n == 0 {
		return nil
	}
	fields := make(map[string][]string, n)
	room := make([]string, n) // for one value each, which is the rule
	for range n {
		name := d.text()
		var values []string
		if k := d.number(len(d.rest)); k <= len(room) {
			values, room = room[:k:k], room[k:]
		} else {
			values = make([]string, k)
		}
		for i := range values {
			values[i] = d.text()
		}
		if d.bad {
			return nil
		}
		if _, twice := fields[name]; twice {
			d.bad = true
			return nil
		}
		fields[name] = values
	}
	return fields
}

// isOneOf reports whether a list in a header field (Connection) has a name.
func isOneOf(lists []string, name string) bool {
	for item := range items(lists) {
		if strings.EqualFold(item, name) {
			return true
		}
	}
	return false
}
