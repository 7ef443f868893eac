// Package steplog is the text in which a record keeps the outcomes of the steps of a request
// (idempotency.Step): the engine writes it, and package fleet shows the names.
package steplog

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
)

// Kind is the kind of an entry.
type Kind byte

// The kinds of entries.
const (
	Done    Kind = 'd' // the step has a result, the payload
	Failed  Kind = 'e' // the step has a final error, the payload
	Bare    Kind = 'x' // the step was carried out, and its result is not stored
	Opened  Kind = 'o' // the step begins, and must not run twice
	Cleared Kind = 'c' // the step that was opened had no effect
	Origin  Kind = 'r' // the endpoint of the request: a job may carry it on; the name is the endpoint's
)

// Outcome reports whether an entry is the end of a step.
func (k Kind) Outcome() bool { return k == Done || k == Failed || k == Bare }

// Entry is one entry of a text. A text is its entries, one after the other:
//
//	kind      1 byte
//	name      string
//	payload   string
//	checksum  CRC-32C of all before it in the entry, 4 bytes, big-endian
//
// A string is its length as a uvarint and its bytes.
type Entry struct {
	Kind    Kind
	Name    string
	Payload string
}

// ErrDamaged says that a text is not made of entries.
var ErrDamaged = errors.New("the steps of the record cannot be read")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Append appends an entry to a text.
func Append(log []byte, e Entry) []byte {
	begin := len(log)
	log = append(log, byte(e.Kind))
	log = append(binary.AppendUvarint(log, uint64(len(e.Name))), e.Name...)
	log = append(binary.AppendUvarint(log, uint64(len(e.Payload))), e.Payload...)
	return binary.BigEndian.AppendUint32(log, crc32.Checksum(log[begin:], castagnoli))
}

// Size is the length of an entry with a payload of n bytes, at most.
func Size(name string, n int) int {
	return 1 + binary.MaxVarintLen16 + len(name) + binary.MaxVarintLen32 + n + 4
}

// Read reads a text.
func Read(log string) (all []Entry, err error) {
	for log != "" {
		rest := log[1:]
		name, ok := next(&rest)
		payload, whole := next(&rest)
		if !ok || !whole || len(rest) < 4 {
			return nil, ErrDamaged
		}
		n := len(log) - len(rest)
		if crc32.Checksum([]byte(log[:n]), castagnoli) != binary.BigEndian.Uint32([]byte(rest[:4])) {
			return nil, ErrDamaged
		}
		all = append(all, Entry{Kind(log[0]), name, payload})
		log = rest[4:]
	}
	return all, nil
}

// next reads a string from the front of a text.
func next(text *string) (s string, ok bool) {
	n, size := binary.Uvarint([]byte((*text)[:min(len(*text), binary.MaxVarintLen32)]))
	if size <= 0 || n > uint64(len(*text)-size) {
		return "", false
	}
	end := size + int(n) //nolint:gosec // not more than the text has
	s, *text = (*text)[size:end], (*text)[end:]
	return s, true
}
