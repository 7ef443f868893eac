package natsstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/interlock-go/interlock/core/casstore"
)

const (
	// leastAsk is for how long a member has time at the least before another one is asked, and slowTrips for how many
	// times what an answer takes lately.
	leastAsk  = 50 * time.Millisecond
	slowTrips = 4
)

// view has the messages that were read, by name.
type view map[string]record

// holds reports whether conditions hold.
func (v view) holds(conditions []casstore.Condition) bool {
	return !slices.ContainsFunc(conditions, func(c casstore.Condition) bool { return v[c.Name].Revision.Number != c.Revision.Number })
}

// entries are some entries by name.
func (v view) entries(names []string) []casstore.Entry {
	list := make([]casstore.Entry, len(names))
	for i, name := range names {
		list[i] = v[name].Entry
		list[i].Name = name
	}
	return list
}

// list are the entries of a range.
func (v view) list(r casstore.Range) (list []casstore.Entry) {
	for name, e := range v {
		if strings.HasPrefix(name, r.Prefix) && name > r.After && e.There() {
			list = append(list, e.Entry)
		}
	}
	slices.SortFunc(list, func(a, b casstore.Entry) int { return strings.Compare(a.Name, b.Name) })
	if r.Limit > 0 && len(list) > r.Limit {
		list = list[:r.Limit]
	}
	return list
}

// complete reads what executed transactions ask for, as it was after a sequence or later, and answers them.
func (s *server) complete(ctx context.Context, batch []*request, from uint64) {
	var names, prefixes []string
	var readers []*request
	for _, r := range batch {
		if r.answer.Done = true; len(r.txn.Read)+len(r.txn.List) == 0 {
			r.end(r.answer, nil)
			continue
		}
		readers, names = append(readers, r), append(names, r.txn.Read...)
		for _, one := range r.txn.List {
			prefixes = append(prefixes, one.Prefix)
		}
	}
	if len(readers) == 0 {
		return
	}
	v, _, err := s.look(ctx, from, names, prefixes)
	if err != nil {
		fail(readers, err)
		return
	}
	for _, r := range readers {
		r.answer.Read = v.entries(r.txn.Read)
		for _, one := range r.txn.List {
			r.answer.Lists = append(r.answer.Lists, v.list(one))
		}
		r.end(r.answer, nil)
	}
}

// question is a request for messages of a stream.
type question struct {
	Last  []string `json:"multi_last,omitempty"`
	Next  string   `json:"next_by_subj,omitempty"`
	Batch int      `json:"batch,omitempty"`
}

// look reads entries, as they were after the sequence from or later: after the sequence that it returns. The entries
// below the prefixes are not older than those with the names.
func (s *server) look(ctx context.Context, from uint64, names, prefixes []string) (v view, upTo uint64, err error) {
	v = view{}
	subjects := []string{s.subject(guard)} // so there is an answer
	for _, name := range names {
		subjects = append(subjects, s.subject(name))
	}
	all := slices.Clone(subjects)
	for _, prefix := range prefixes {
		all = append(all, s.filter(prefix))
	}
	slices.Sort(all)
	upTo, err = s.reads(ctx, v, question{Last: slices.Compact(all)}, from)
	if !errors.Is(err, errMany) {
		s.forget(v, names)
		return v, upTo, err
	}
	clear(v)
	slices.Sort(subjects)
	upTo, err = s.reads(ctx, v, question{Last: slices.Compact(subjects)}, from)
	for i := 0; err == nil && i < len(prefixes); i++ {
		// One request for all entries, however many there are. A guard among them says from when they are.
		if from, err = s.guards(ctx, prefixes[i]+guard); err == nil {
			upTo, err = s.reads(ctx, v, question{Next: s.filter(prefixes[i]), Batch: 1 << 30}, from)
		}
	}
	s.forget(v, names)
	return v, upTo, err
}

// reads asks until a member answers that does not lag: a member that hangs does not answer, so another one is asked.
func (s *server) reads(ctx context.Context, v view, q question, from uint64) (upTo uint64, err error) {
	text, err := json.Marshal(q)
	if err != nil {
		return 0, err
	}
	for wait := max(leastAsk, slowTrips*time.Duration(s.trip.Load())); ; wait *= 2 {
		begin := time.Now()
		some, upTo, err := s.once(ctx, text, wait)
		if err == nil && upTo < from {
			err = errLags
		}
		switch {
		case err == nil:
			s.trip.Store(int64(time.Since(begin)))
			s.sees(upTo)
			for _, r := range some {
				v[r.Name] = r
				s.learn(r)
			}
			return upTo, nil
		case errors.Is(err, errMany):
			return 0, err
		case errors.Is(err, errNone): // there is no guard yet
			_, err = s.guards(ctx, guard)
		}
		if pause(ctx, 2*time.Millisecond); ctx.Err() != nil {
			return 0, fmt.Errorf("reading: %w: %w", context.Cause(ctx), err)
		}
	}
}

// once asks a member, and reads its answer. upTo is the sequence that the answer is from.
func (s *server) once(ctx context.Context, text []byte, wait time.Duration) (some []record, upTo uint64, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, wait, errSilent)
	defer cancel()
	last, said := uint64(0), error(nil)
	err = s.replies.ask(ctx, func(reply string) error { return s.nc.PublishRequest(s.direct, reply, text) }, func(m *nats.Msg) bool {
		number := func(name string) uint64 {
			n, _ := strconv.ParseUint(m.Header.Get(name), 10, 64)
			return n
		}
		switch code := m.Header.Get("Status"); {
		case code == "413":
			said = errMany
		case code == "404" && m.Header.Get("Description") == "No Results":
			said = errNone
		case code != "" && code != "204":
			said = fmt.Errorf("NATS: %s %s", code, m.Header.Get("Description"))
		case number("Nats-Last-Sequence") != last:
			said = errHoles
		case code == "204" && number("Nats-Num-Pending") > 0:
			said = errors.New("natsstore: an answer would be larger than max_pending of NATS")
		case code == "204":
			upTo = max(upTo, number("Nats-UpTo-Sequence"))
			return true
		default:
			last = number("Nats-Sequence")
			upTo = max(upTo, last)
			if r, ok := s.read(m.Header.Get("Nats-Subject"), last, m.Header, m.Data); ok {
				some = append(some, r)
			}
		}
		return said != nil
	})
	return some, upTo, errors.Join(said, err)
}

// forget forgets entries of which no message was found: their markers may have ended.
func (s *server) forget(v view, names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range names {
		if _, ok := v[name]; !ok {
			delete(s.known, name)
		}
	}
}
