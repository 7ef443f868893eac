package rediswire

import (
	"strconv"
	"strings"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

// This file reads, for tools, the keys that the scripts write; lua/places.lua and
// lua/acquire.lua have the layout. It accepts any contents of Redis: values with a wrong
// form are left out.

// LockName returns the name of a lock's hash.
func (s *Store) LockName(key string) string { return s.names.lock(key) }

// FenceName returns the name of the key with the last token of a lock.
func (s *Store) FenceName(key string) string { return fenceOf(s.names.lock(key)) }

// LockerName returns the name of a locker's entry.
func (s *Store) LockerName(id string) string { return s.names.locker(id) }

// LockPattern and LockerPattern are for SCAN. Names that begin and end as they say may
// belong to something else: [Store.KeyOf] and [Store.LockerOf] decide. begin is how
// the keys begin that are looked for.
func (s *Store) LockPattern(begin string) string {
	name := s.names.lock(begin)
	return globbed(name[:len(name)-1]) + "*}"
}

// LockerPattern is the pattern of all entries of lockers.
func (s *Store) LockerPattern() string { return globbed(s.names.prefix) + ":locker:{*}" }

// RecordPattern is the pattern of all records of idempotency keys, and RecordOf returns the id of
// the record with a hash of that name.
func (s *Store) RecordPattern() string { return globbed(s.names.prefix) + ":idem:{*}" }

// RecordOf is described at [Store.RecordPattern].
func (s *Store) RecordOf(name string) (id string, ok bool) {
	rest, begins := strings.CutPrefix(name, s.names.prefix+":idem:{")
	id, ends := strings.CutSuffix(rest, "}")
	return id, begins && ends && id != ""
}

// globbed escapes the special characters of a pattern of Redis.
func globbed(s string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`, `^`, `\^`, `-`, `\-`).Replace(s)
}

// KeyOf returns the key of the lock with a hash of that name.
func (s *Store) KeyOf(name string) (key string, ok bool) {
	rest, begins := strings.CutPrefix(name, s.names.prefix+":{")
	rest, ends := strings.CutSuffix(rest, "}")
	if !begins || !ends || strings.ContainsAny(rest, "{}") {
		return "", false
	}
	if !strings.Contains(rest, `\`) {
		return rest, rest != ""
	}
	var b strings.Builder
	for i := 0; i < len(rest); i++ {
		c := rest[i]
		if c == '\\' {
			if i++; i == len(rest) {
				return "", false
			}
			at := strings.IndexByte(`\()`, rest[i])
			if at < 0 {
				return "", false
			}
			c = `\{}`[at]
		}
		b.WriteByte(c)
	}
	return b.String(), true
}

// LockerOf returns the id of the locker with an entry of that name.
func (s *Store) LockerOf(name string) (id string, ok bool) {
	rest, begins := strings.CutPrefix(name, s.names.prefix+":locker:{")
	id, ends := strings.CutSuffix(rest, "}")
	return id, begins && ends && id != ""
}

// The fields of a lock's hash that are no owners.
const (
	FieldWaiters = "q"
	FieldBound   = "m"
	FieldBarrier = "b"
	// FieldReserved says that the lock is free, and reserved for those who wait.
	FieldReserved = "r"
	// FieldOffered is the owner that is offered a reserved lock.
	FieldOffered = "offer"
)

// HolderView is an owner in a lock's hash.
type HolderView struct {
	Owner string
	Token int64
	// Place says that it has a place, which ends at Ends by the server's clock.
	Place bool
	Ends  time.Time
}

// ReadHolder reads one field of a lock's hash. ok is false for a field that is no owner's.
func ReadHolder(field, value string) (h HolderView, ok bool) {
	switch field {
	case FieldWaiters, FieldBound, FieldBarrier, FieldReserved:
		return h, false
	case FieldOffered:
		// Its locker has begun, if the message has reached it.
		at := strings.LastIndexByte(value, ':')
		if at < 0 {
			return h, false
		}
		field, value = value, value[at+1:]
	}
	token, ends, place := strings.Cut(value, "@")
	h = HolderView{Owner: field, Place: place}
	var err error
	if h.Token, err = strconv.ParseInt(token, 10, 64); err != nil {
		return h, false
	}
	if place {
		ms, err := strconv.ParseInt(ends, 10, 64)
		if err != nil {
			return h, false
		}
		h.Ends = time.UnixMilli(ms)
	}
	return h, true
}

// ReadReserved reads for how long a release has kept the lock. ok is false if the lock is not kept.
func ReadReserved(value string) (reserved time.Duration, ok bool) {
	ms, err := strconv.ParseInt(value, 10, 64)
	return time.Duration(ms) * time.Millisecond, err == nil && ms > 0
}

// ReadFence reads the last token of a lock. A token of a quorum is followed by a time
// while its holder may be counting on (lua/propose.lua).
func ReadFence(value string) (token int64, voted bool) {
	text, _, voted := strings.Cut(value, "@")
	token, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, false
	}
	return token, voted
}

// ReadEntry reads the entry of a locker. seen is when it was written, by the server's
// clock. ok is false if there is none.
func ReadEntry(id string, fields map[string]string) (a driver.Announcement, seen time.Time, ok bool) {
	if len(fields) == 0 {
		return driver.Announcement{ID: id}, seen, false
	}
	number := func(name string) int64 {
		n, _ := strconv.ParseInt(fields[name], 10, 64)
		return n
	}
	at := func(name string) (t time.Time) {
		if ms := number(name); ms > 0 {
			t = time.UnixMilli(ms)
		}
		return t
	}
	return driver.Announcement{
		ID: id, Host: fields[entryHost], PID: int(number(entryPID)), Service: fields[entryService],
		Version: fields[entryVersion], Started: at(entryStarted), Protocol: int(number(entryProtocol)),
	}, at(entrySeen), true
}
