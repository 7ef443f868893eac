package casstore

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/driver/keystate"
)

// layout names the entries of a store:
//
//	{prefix}/{key}/lock              the holders, and the rules' record; see [value]
//	{prefix}/{key}/line              is written whenever a locker comes into line
//	{prefix}/{key}/line/{locker}     a locker that waits; see [listed]
//	{prefix}/{key}/line/:all         lockers that have another order than their entries; see [line]
//	{prefix}/{key}/place             is written whenever an owner takes a place, or leaves a place free
//	{prefix}/{key}/place/{place}     an owner that shares the lock with others, or has a permit; see [held]
//	{prefix}/{key}/held/{owner}      is there while the owner holds the lock; see [Store.Held]
//	{prefix}/:beat/{process}/{ms}    the sign of life of a process, for locks of one lease
//	{prefix}/:void/{process}         changes when transactions of a process become void
//	{prefix}/:note/{hash}            an owner has handed a lock on, or lost it to an operator; see [note]
//	{prefix}/:call/{process}/{key}   says that the turn of a locker of the process has come; see [call]
//
// Keys are escaped, so that no key begins with a colon.
type layout struct{ prefix string }

func (l layout) lock(key string) string { return l.key(key) + "lock" }
func (l layout) line(key string) string { return l.key(key) + "line" }

// allPart is the last part of the name of the entry with all lockers of a line.
const allPart = ":all"

// waits is the name of the entry of a locker in line, or the beginning of all these names.
func (l layout) waits(key, id string) string {
	if id != "" {
		id = escape(id)
	}
	return l.line(key) + "/" + id
}

// inOne is the name of the entry with all lockers of a line.
func (l layout) inOne(key string) string { return l.waits(key, "") + allPart }

// taking is the name of the entry that is written whenever an owner takes a place.
func (l layout) taking(key string) string { return l.key(key) + "place" }

// place is the name of the entry of a place, or the beginning of all these names.
func (l layout) place(key, name string) string { return l.taking(key) + "/" + name }

func (l layout) held(key, owner string) string { return l.key(key) + "held/" + escape(owner) }

// key is the beginning of the names of all entries of a key.
func (l layout) key(key string) string { return l.prefix + "/" + escape(key) + "/" }

func (l layout) beat(process string, lease time.Duration) string {
	return l.beats() + process + "/" + strconv.FormatInt(lease.Milliseconds(), 10)
}

func (l layout) beats() string              { return l.prefix + "/:beat/" }
func (l layout) void(process string) string { return l.voids() + process }
func (l layout) voids() string              { return l.prefix + "/:void/" }

func (l layout) call(process, key string) string { return l.calls(process) + escape(key) }
func (l layout) calls(process string) string     { return l.allCalls() + process + "/" }
func (l layout) allCalls() string                { return l.prefix + "/:call/" }

// all is the beginning of the names of all entries.
func (l layout) all() string { return l.prefix + "/" }

// escape makes a part of a name of any text, no two texts the same.
func escape(text string) string {
	const hex = "0123456789ABCDEF"
	if text == "" {
		return "%"
	}
	var out strings.Builder
	for i := range len(text) {
		switch c := text[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '_', c == '~':
			out.WriteByte(c)
		default:
			out.Write([]byte{'%', hex[c>>4], hex[c&15]})
		}
	}
	return out.String()
}

// unescape is the inverse of escape.
func unescape(part string) (string, bool) {
	if part == "%" {
		return "", true
	}
	text, err := url.PathUnescape(part)
	return text, err == nil
}

// value is the value of a lock. It has the instants of the record as if it had been written at the
// instant [written], and no ends of leases: each store finds these out by its own clock.
type value struct {
	Holds []held          `json:"holds,omitempty"`
	Gone  int64           `json:"gone,omitempty"` // the lockers up to this number wait no more; zero: up to the entry's revision
	Lock  json.RawMessage `json:"lock"`           // see [keystate.Record.AppendText]
	spread
}

// spread says that owners may have places. They take them on condition that the lock is as it is, and write it only if
// that changes.
type spread struct {
	Places  bool `json:"places,omitempty"`
	Permits int  `json:"permits,omitempty"` // how many there may be at most
}

// written is when a value was written, to the instants in it.
var written = time.Unix(1<<30, 0)

// held is a holder of a lock.
type held struct {
	Owner   string `json:"owner"`
	Process string `json:"process"` // the holder lives while the beat of this process changes
	Lease   int64  `json:"ms"`
	Granted int64  `json:"granted,omitempty"` // the number of the revision of the grant; zero: the entry's own
	Kept    bool   `json:"kept,omitempty"`    // there is an entry for [Store.Held], which ends with the hold
	// For is the locker that a place is kept for: it was called. Then there is no owner, and the lease is its patience.
	For driver.Waiter `json:"for,omitempty"`

	place string   // the name of the entry of a place; empty: the hold is in the entry of the lock
	at    Revision // of that entry
}

// ends returns the operations that go with the end of a hold.
func (h held) ends(l layout, key string) []Op {
	if !h.Kept {
		return nil
	}
	return []Op{{Name: l.held(key, h.Owner), Delete: true}}
}

func (h held) lease() time.Duration { return time.Duration(h.Lease) * time.Millisecond }

// token is the fencing token of a grant. There is room for more until the next one.
func (h held) token() int64 { return leastToken + h.Granted*tokens }

const (
	// tokens is how many fencing tokens a grant has: its own, and others for the hand-overs
	// in its process.
	tokens = 1 << 16
	// leastToken is above all tokens that are times in microseconds, until the year 2112. So
	// they are not taken for old ones by what deletes old fences, and go on where a service
	// comes from Redis.
	leastToken = 1 << 52
)

// occupied is the error for an entry with a value of something else.
func occupied(e Entry, why error) error {
	return fmt.Errorf("%w: %s has the value %.100q: %w", driver.ErrKeyOccupied, e.Name, e.Value, why)
}

// read reads the value of a lock that is there.
func (v *value) read(lock Entry) (record keystate.Record, err error) {
	if err = json.Unmarshal([]byte(lock.Value), v); err == nil {
		err = record.UnmarshalText(v.Lock)
	}
	if err == nil && slices.ContainsFunc(v.Holds, func(h held) bool { return h.Lease <= 0 }) {
		err = errors.New("a lease of nothing")
	}
	if err != nil {
		return record, occupied(lock, err)
	}
	if v.Gone == 0 {
		v.Gone = lock.Revision.Number * perRevision // entries from before it was made are of no locker
	}
	for i := range v.Holds {
		if v.Holds[i].Granted == 0 {
			v.Holds[i].Granted = lock.Revision.Number
		}
	}
	return record, nil
}

// holderIn returns the hold of an owner of this process: of a holder, of an owner that was offered the lock, or of one
// with a place that is known, if that is there and has the value of one.
func (s *Store) holderIn(at found, owner string) (h held, ok bool, err error) {
	if i := slices.IndexFunc(at.taken, func(h held) bool { return h.Owner == owner }); i >= 0 {
		return at.taken[i], true, nil
	}
	var v value
	if !at.lock.There() {
		return h, false, nil
	}
	rec, err := v.read(at.lock)
	if err != nil {
		return h, false, err
	}
	if i := slices.IndexFunc(v.Holds, func(h held) bool { return h.Owner == owner }); i >= 0 {
		return v.Holds[i], true, nil
	}
	if offered, token := rec.Offered(written); offered != "" && offered == owner {
		return offerOf(owner, s.process, token), true, nil
	}
	return h, false, nil
}
