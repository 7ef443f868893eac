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

// The fields of a lock's hash that are no owners.
const (
	fieldWaiters = "q"
	fieldBound   = "m"
	fieldBarrier = "b"
	// fieldReserved says that the lock is free, and reserved for those who wait.
	fieldReserved = "r"
	// fieldOffered is the owner that is offered a reserved lock.
	fieldOffered = "offer"
)

// readHolder reads one field of a lock's hash: the holder, and when its place ends by the server's
// clock. ok is false for a field that is no owner's.
func readHolder(field, value string) (h driver.HolderView, ends time.Time, ok bool) {
	switch field {
	case fieldWaiters, fieldBound, fieldBarrier, fieldReserved:
		return h, ends, false
	case fieldOffered:
		// Its locker has begun, if the message has reached it.
		at := strings.LastIndexByte(value, ':')
		if at < 0 {
			return h, ends, false
		}
		field, value = value, value[at+1:]
	}
	token, end, place := strings.Cut(value, "@")
	h.Owner, h.Place = field, place
	var err error
	if h.Token, err = strconv.ParseInt(token, 10, 64); err != nil || !place {
		return h, ends, err == nil
	}
	ms, err := strconv.ParseInt(end, 10, 64)
	return h, time.UnixMilli(ms), err == nil
}

// readReserved reads for how long a release has kept the lock. ok is false if the lock is not kept.
func readReserved(value string) (reserved time.Duration, ok bool) {
	ms, err := strconv.ParseInt(value, 10, 64)
	return time.Duration(ms) * time.Millisecond, err == nil && ms > 0
}

// readFence reads the last token of a lock. A token of a quorum is followed by a time
// while its holder may be counting on (lua/propose.lua).
func readFence(value string) (token int64, voted bool) {
	text, _, voted := strings.Cut(value, "@")
	token, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, false
	}
	return token, voted
}
