package casstore

import (
	"context"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

// Look returns the state of the lock of a key, for package fleet.
func (s *Store) Look(ctx context.Context, key string) (driver.View, error) {
	answer, err := s.read(ctx, Txn{
		Read: []string{s.names.lock(key), s.names.line(key)}, List: []Range{{Prefix: s.names.waits(key, "")}, {Prefix: s.names.place(key, "")}},
	})
	if err != nil {
		return driver.View{Key: key}, err
	}
	hosts, err := s.hosts(ctx)
	if err != nil {
		return driver.View{Key: key}, err
	}
	at := found{lock: answer.Read[0], line: answer.Read[1], come: answer.Lists[0], full: true, places: places{taken: []held{}, allTaken: true}}
	for _, e := range answer.Lists[1] {
		at.taken = append(at.taken, placeIn(e))
	}
	return s.shown(key, at, hosts)
}

// List goes through the locks with keys that begin with a text, for package fleet, in the order of their
// names on the server. An entry with the name of no lock is left out. A lock that cannot be read has a View
// with its key alone, and an error.
func (s *Store) List(ctx context.Context, begin string, _ func(key string) bool) iter.Seq2[driver.View, error] {
	return func(yield func(driver.View, error) bool) {
		hosts, err := s.hosts(ctx)
		first := s.names.all()
		if begin != "" {
			first += escape(begin)
		}
		last, at := "", found{} // of one key: its places come after its lock
		show := func() bool {
			if !at.lock.There() {
				return true
			}
			v, wrong := s.shown(last, at, hosts)
			if wrong != nil {
				wrong = fmt.Errorf("the lock %q: %w", last, wrong)
			}
			return wrong == nil && v.Free() || yield(v, wrong)
		}
		for e, failed := range s.entries(ctx, s.names.all(), strings.TrimSuffix(first, "/")) {
			if err = failed; err != nil || !strings.HasPrefix(e.Name, first) {
				break
			}
			part, kind, _ := strings.Cut(strings.TrimPrefix(e.Name, s.names.all()), "/")
			key, ok := unescape(part)
			if key != last || !ok {
				if !show() {
					return
				}
				last, at = key, found{full: true, places: places{taken: []held{}, allTaken: true}}
			}
			switch {
			case !ok || strings.HasPrefix(part, ":"):
			case kind == "line":
				at.line = e
			case strings.HasPrefix(kind, "line/"):
				at.come = append(at.come, e)
			case kind == "lock":
				at.lock = e
			case s.names.isPlace(key, e.Name):
				at.taken = append(at.taken, placeIn(e))
			}
		}
		if !show() {
			return
		}
		if err != nil {
			yield(driver.View{}, err)
		}
	}
}

// shown makes the view of a key for an operator. No clock of the server takes part: the lease of a holder
// counts from its last sign of life.
func (s *Store) shown(key string, at found, hosts map[string]string) (driver.View, error) {
	v, err := s.open(key, at, time.Time{})
	if err != nil {
		return driver.View{Key: key}, err
	}
	view := v.rec.View(key, v.now)
	view.Now = time.Time{}
	for i := range view.Holders {
		to := &view.Holders[i]
		h, known := v.hold(to.Owner)
		if !known {
			to.Whole = true
			continue // it is offered the lock
		}
		to.Token, to.Left, to.Whole = h.token(), h.lease(), true
		process, sign := signOf(hosts[s.names.beat(h.Process, h.lease())])
		host, pid, _ := strings.Cut(process, "/")
		to.Host, to.Sign = host, sign
		to.PID, _ = strconv.Atoi(pid) // zero: not known
		view.Token = max(view.Token, to.Token)
	}
	return view, nil
}

// hosts are the signs of life of the processes, by their names.
func (s *Store) hosts(ctx context.Context) (map[string]string, error) {
	hosts := map[string]string{}
	for e, err := range s.entries(ctx, s.names.beats(), "") {
		if err != nil {
			return nil, err
		}
		hosts[e.Name] = e.Value
	}
	return hosts, nil
}

// entries goes through the entries with a prefix, after a name, page by page.
func (s *Store) entries(ctx context.Context, prefix, after string) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		for full := true; full; {
			answer, err := s.read(ctx, Txn{List: []Range{{Prefix: prefix, After: after, Limit: page}}})
			if err != nil {
				yield(Entry{}, err)
				return
			}
			for _, e := range answer.Lists[0] {
				if after = e.Name; !yield(e, nil) {
					return
				}
			}
			full = len(answer.Lists[0]) == page
		}
	}
}

// read sends a transaction that only reads.
func (s *Store) read(ctx context.Context, txn Txn) (Answer, error) {
	t := tries{store: s, deadline: time.Now().Add(patience * s.wait()), base: ctx}
	for {
		if answer, _, again, err := t.send(txn); !again {
			return answer, err
		}
	}
}
