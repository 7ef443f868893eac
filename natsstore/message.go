package natsstore

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/interlock-go/interlock/core/casstore"
)

// An entry is the last message of a subject. A deletion is a message as well, a marker, which NATS deletes after a time.
// A later message deletes it earlier; so a second subject, the grave, has a message for watches, unless the entry is
// brief. A guard is a message that carries a condition on an entry that is not written, or that a read begins with.
const (
	graves = "=gone." // no name has this sign
	guard  = "=guard"

	// markerLife is for how long a marker stays. A watch that is so late fails.
	markerLife = time.Minute

	headerPlace  = "Interlock" // see [place]
	headerKind   = "KV-Operation"
	headerReason = "Nats-Marker-Reason"
	headerTTL    = "Nats-TTL"
	headerLast   = "Nats-Expected-Last-Subject-Sequence"
	headerOther  = headerLast + "-Subject"
)

// place is the position of a message in its transaction. The number of a transaction is the sequence of its last message.
type place struct {
	follow int // how many messages follow
	shared int // how many parts its name begins with that a longer name of a later message begins with, too
}

func (s *server) subject(name string) string { return s.subjects + strings.ReplaceAll(name, "/", ".") }

// filter matches the entries below a prefix, or the entry of a name.
func (s *server) filter(prefix string) string {
	if strings.HasSuffix(prefix, "/") {
		return s.subject(prefix) + ">"
	}
	return s.subject(prefix)
}

// grave is the subject of the grave of an entry, or the filter of several.
func (s *server) grave(subject string) string {
	return s.subjects + graves + strings.TrimPrefix(subject, s.subjects)
}

// record is the last message of an entry.
type record struct {
	casstore.Entry
	sequence uint64
	gone     bool // it is a marker
	grave    bool // it is in its grave
	place    place
}

// read reads a message. It reports false for a guard.
func (s *server) read(subject string, sequence uint64, header nats.Header, data []byte) (r record, ok bool) {
	name, grave := strings.CutPrefix(strings.TrimPrefix(subject, s.subjects), graves)
	if strings.Contains(name, "=") {
		return r, false
	}
	r.Name, r.sequence = strings.ReplaceAll(name, ".", "/"), sequence
	r.grave = grave
	r.gone = header.Get(headerKind) != "" || header.Get(headerReason) != ""
	_, _ = fmt.Sscan(header.Get(headerPlace), &r.place.follow, &r.place.shared)
	if !r.gone {
		r.Value, r.Revision.Number = string(data), int64(sequence)+int64(r.place.follow)
	}
	return r, true
}

// learn notes entries for the next conditions on them. Only the number of messages rests on it.
func (s *server) learn(some ...record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.known) > mostKnown {
		clear(s.known)
	}
	for _, r := range some {
		if r.Value = ""; r.sequence >= s.known[r.Name].sequence {
			s.known[r.Name] = r
		}
	}
}

// mostKnown is the maximum number of entries that a process notes.
const mostKnown = 20_000

// expects is the sequence that NATS compares for a condition, as far as it is known.
func (s *server) expects(c casstore.Condition) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	sequence := uint64(c.Revision.Number) // of the last message of its transaction
	if r := s.known[c.Name]; r.Revision.Number == c.Revision.Number {
		sequence = r.sequence // of a marker as well
	}
	return strconv.FormatUint(sequence, 10)
}

// written is an operation of a request, and the message that executes it.
type written struct {
	of      *request
	op      int
	message int
}

// compose makes the messages of some transactions.
func (s *server) compose(batch []*request) (messages []*nats.Msg, ops []written) {
	var names [][]string // of the messages
	add := func(subject, name, value string) *nats.Msg {
		m := nats.NewMsg(subject)
		m.Data = []byte(value)
		messages, names = append(messages, m), append(names, strings.Split(name, "/"))
		return m
	}
	expected := map[string]string{}
	for _, r := range batch {
		for _, c := range r.txn.If {
			expected[c.Name] = s.expects(c)
		}
	}
	var free []*nats.Msg // can carry a condition on another entry
	for _, r := range batch {
		for i, op := range r.txn.Then {
			m := add(s.subject(op.Name), op.Name, op.Value)
			if sequence, ok := expected[op.Name]; ok {
				m.Header.Set(headerLast, sequence)
				m.Header.Set(headerOther, m.Subject) // NATS 2.12.0 needs it in a batch
				delete(expected, op.Name)
			} else {
				free = append(free, m)
			}
			ops = append(ops, written{r, i, len(messages) - 1})
			if op.Delete {
				mark(m)
			}
			if op.Delete && !op.Brief {
				m := add(s.grave(m.Subject), op.Name, "")
				mark(m)
				free = append(free, m)
			}
		}
	}
	for name, sequence := range expected {
		if len(free) == 0 {
			free = append(free, add(s.subject(guard), guard, ""))
		}
		free[0].Header.Set(headerOther, s.subject(name))
		free[0].Header.Set(headerLast, sequence)
		free = free[1:]
	}
	if len(messages) == 0 {
		add(s.subject(guard), guard, "")
	}
	for i, m := range messages {
		shared := 0
		for _, other := range names[i+1:] {
			n := 0
			for n < len(names[i]) && n < len(other) && names[i][n] == other[n] {
				n++
			}
			shared = max(shared, min(n, len(other)-1))
		}
		m.Header.Set(headerPlace, fmt.Sprint(len(messages)-1-i, shared))
	}
	return messages, ops
}

// mark makes a message a marker.
func mark(m *nats.Msg) {
	m.Header.Set(headerKind, "DEL")
	m.Header.Set(headerTTL, markerLife.String())
}
