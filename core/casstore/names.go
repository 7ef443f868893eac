package casstore

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

// layout names the entries of a store:
//
//	{prefix}/{key}/lock              the holder; see [holding]
//	{prefix}/{key}/lock/{locker}     a locker that waits
//	{prefix}/{key}/held/{owner}      is there while the owner holds the lock; see [Store.Held]
//	{prefix}/:beat/{process}/{ms}    the sign of life of a process, for locks of one lease
//	{prefix}/:void/{process}         changes when transactions of a process become void
//
// Keys and lockers are escaped, so that no key begins with a colon.
type layout struct{ prefix string }

func (l layout) lock(key string) string  { return l.key(key) + "lock" }
func (l layout) queue(key string) string { return l.lock(key) + "/" }
func (l layout) waiter(key, locker string) string {
	return l.queue(key) + escape(locker)
}

func (l layout) held(key, owner string) string { return l.key(key) + "held/" + escape(owner) }

// key is the beginning of the names of all entries of a key.
func (l layout) key(key string) string { return l.prefix + "/" + escape(key) + "/" }

func (l layout) beat(process string, lease time.Duration) string {
	return l.beats() + process + "/" + strconv.FormatInt(lease.Milliseconds(), 10)
}

func (l layout) beats() string              { return l.prefix + "/:beat/" }
func (l layout) void(process string) string { return l.voids() + process }
func (l layout) voids() string              { return l.prefix + "/:void/" }

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
	var out strings.Builder
	for i := 0; i < len(part); i++ {
		c := part[i]
		if c == '%' {
			if i+2 >= len(part) {
				return "", false
			}
			n, err := strconv.ParseUint(part[i+1:i+3], 16, 8)
			if err != nil {
				return "", false
			}
			c, i = byte(n), i+2
		}
		out.WriteByte(c)
	}
	return out.String(), true
}

// holding is the value of a lock.
type holding struct {
	owner   string
	lease   time.Duration
	process string // the holder lives while the beat of this process changes
	granted int64  // the number of the revision of the grant; zero: the entry's own
	rest    string // the lockers that waited when it was granted, separated by commas
	kept    bool   // there is an entry for [Store.Held], which ends with the hold
}

// format begins each value of a lock, so that a later layout can be distinguished from
// this one.
const format = "1"

func (h holding) String() string {
	words := []string{
		format, escape(h.owner), strconv.FormatInt(h.lease.Milliseconds(), 10), h.process,
		strconv.FormatInt(h.granted, 10), escape(h.rest),
	}
	if h.kept {
		words = append(words, keptWord)
	}
	return strings.Join(words, " ")
}

// keptWord ends the value of a lock that has an entry for [Store.Held].
const keptWord = "held"

// ends returns the operations that go with the end of a hold.
func (h holding) ends(l layout, key string) []Op {
	if !h.kept {
		return nil
	}
	return []Op{{Name: l.held(key, h.owner), Delete: true}}
}

// holder reads the value of a lock.
func holder(lock Entry) (h holding, err error) {
	value, kept := strings.CutSuffix(lock.Value, " "+keptWord)
	if fields := strings.Split(value, " "); len(fields) == 6 && fields[0] == format {
		owner, known := unescape(fields[1])
		lease, wrong := strconv.ParseInt(fields[2], 10, 64)
		granted, unknown := strconv.ParseInt(fields[4], 10, 64)
		rest, listed := unescape(fields[5])
		if known && listed && wrong == nil && unknown == nil && lease > 0 {
			if granted == 0 {
				granted = lock.Revision.Number
			}
			return holding{
				owner: owner, lease: time.Duration(lease) * time.Millisecond, process: fields[3], granted: granted, rest: rest, kept: kept,
			}, nil
		}
	}
	return h, fmt.Errorf("%w: %s has the value %.100q", driver.ErrKeyOccupied, lock.Name, lock.Value)
}

// token is the fencing token of a grant. There is room for more until the next one.
func (h holding) token() int64 { return leastToken + h.granted*tokens }

const (
	// tokens is how many fencing tokens a grant has: its own, and others for the hand-overs
	// in its process.
	tokens = 1 << 16
	// leastToken is above all tokens that are times in microseconds, until the year 2112. So
	// they are not taken for old ones by what deletes old fences, and go on where a service
	// comes from Redis.
	leastToken = 1 << 52
)

// line is the list of the lockers that wait for a lock: first the lockers that it was granted
// with, then the lockers that were entered since. An entry from before the grant is of a
// locker that was passed over, or has left.
func (h holding) line(queue string, entries []Entry) []string {
	var line []string
	if h.rest != "" {
		line = strings.Split(h.rest, ",")
	}
	ordered := slices.SortedFunc(slices.Values(entries), func(a, b Entry) int {
		return cmp.Compare(a.Revision.Number, b.Revision.Number)
	})
	for _, e := range ordered {
		if name := nameIn(queue, e); name != "" && e.Revision.Number > h.granted && !slices.Contains(line, name) {
			line = append(line, name)
		}
	}
	return line
}

// nameIn is the locker of an entry of a queue; empty if the entry is not of this package.
func nameIn(queue string, e Entry) string {
	name, _ := unescape(strings.TrimPrefix(e.Name, queue))
	return name
}
