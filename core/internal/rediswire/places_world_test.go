package rediswire

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

// arguments returns what a script is called with.
func (c asked) arguments(key string) (keys []string, args []any) {
	lock, fence := key, key+":fence"
	switch c.script {
	case "acquire":
		waiter := c.id
		if c.id != "" && c.left > 0 {
			waiter += fmt.Sprint("@", c.left)
		}
		keys, args = []string{lock, fence}, []any{c.owner, c.lease, c.lease + 60_000, waiter}
		if c.rest != "" {
			args = append(args, c.rest)
		}
		return keys, args
	case "line":
		waiter := c.id
		if c.left > 0 {
			waiter += fmt.Sprint("@", c.left)
		}
		return []string{lock, fence, key + ":newest"}, []any{c.owner, c.lease, c.lease + 60_000, waiter, c.rest, 1, c.number}
	case "enter":
		return []string{lock, fence}, []any{c.owner, c.lease, c.lease + 60_000, c.atMost, c.rest, c.id, c.tokens}
	case "stay", "renew":
		return []string{lock}, []any{c.owner, c.lease}
	case "leave":
		keys, args = []string{lock}, []any{c.owner, "RPUSH", c.id, c.atMost}
	case "decline":
		return []string{lock}, []any{c.id, "RPUSH"}
	default:
		keys, args = []string{lock}, []any{c.owner, "RPUSH", c.id}
	}
	if c.token > 0 {
		keys, args = append(keys, fence), append(args, c.token, 60_000)
	}
	return keys, args
}

// locker takes part in a world. It does what a locker does, but also loses
// its memory, gives up, and has its requests repeated or executed late.
type locker struct {
	id     string
	want   asked // its try; no owner: it wants nothing
	holds  bool
	token  int64
	before []asked // its requests, some of them come late
}

// world is a key, the lockers that want it, and the model of what they may get.
type world struct {
	model
	key     string
	rand    *rand.Rand
	lockers []*locker
	owners  int
	limits  []int64 // of its permits; 0 is a shared lock
	ranged  bool    // its lockers say how long they may take
	writers int     // of ten tries so many are exclusive
	freed   string  // the last list that was announced when it became free
	calls   []string
}

func newWorld(key string, seed uint64) *world {
	w := &world{key: key, rand: rand.New(rand.NewPCG(seed, 1))}
	w.places = map[string]*tenure{}
	for i := range 6 {
		w.lockers = append(w.lockers, &locker{id: fmt.Sprintf("%08x", 0xa0000000+i)})
	}
	w.limits = [][]int64{{0}, {1}, {2}, {3}, {1, 2, 4}, {0, 2}}[w.rand.IntN(6)]
	w.ranged = w.once(2)
	w.writers = []int{0, 1, 3, 9}[w.rand.IntN(4)]
	return w
}

// lease is a lease in ms: most end during the test, many at once.
func (w *world) lease() int64 {
	most := []int64{4, 40, 300, 1500}[w.rand.IntN(4)]
	return 1 + w.rand.Int64N(most)
}

// name is a locker's name, in half of the worlds with the time that it may take.
func (w *world) name(l *locker) string {
	if !w.ranged {
		return l.id
	}
	return driver.WithPatience(l.id, time.Duration(w.rand.IntN(60))*time.Millisecond)
}

func (w *world) once(in int) bool { return w.rand.IntN(in) == 0 }

// next chooses a call.
func (w *world) next() (*locker, asked) {
	l := w.lockers[w.rand.IntN(len(w.lockers))]
	if len(l.before) > 0 && w.once(20) {
		late := l.before[w.rand.IntN(len(l.before))]
		if late.script == "release" && late.token < w.last {
			late.token = 0 // it would lower the fence, as it always could
		}
		return nil, late
	}
	if l.want.owner != "" && w.once(25) {
		gaveUp := !l.holds && l.want.id != "" && w.once(2)
		l.want, l.holds = asked{}, false // crashed, or gave up
		if gaveUp {
			return nil, asked{script: "decline", id: l.id}
		}
	}
	c := l.want
	switch {
	case c.owner == "":
		w.owners++
		c = asked{script: "enter", owner: fmt.Sprint("o:", w.owners), lease: w.lease(), tokens: 1, id: w.name(l)}
		if w.rand.IntN(10) < w.writers {
			c.script, c.left = "acquire", []int64{0, 50, 700, 5000}[w.rand.IntN(4)]
		} else if c.atMost = w.limits[w.rand.IntN(len(w.limits))]; c.atMost > 0 {
			c.tokens = 16
		}
		if w.once(8) {
			c.id = ""
		}
		if w.freed != "" && w.once(2) {
			c.rest = uncalled(remove(w.freed, l.id))
		}
		if c.script == "acquire" && c.id != "" && w.once(3) {
			c.script, c.newest = "line", true
		}
		l.want = c
	case !l.holds && c.id != "":
		c.id = w.name(l) // again, and perhaps farther away
	case !l.holds: // again, as it was
	default:
		exclusive := c.script != "enter"
		switch n := w.rand.IntN(10); {
		case n < 1: // repeated
		case n < 6:
			c.script, c.rest, c.lease = "stay", "", w.lease()
			if exclusive {
				c.script = "renew"
			}
			if n == 5 {
				c.lease = 0
			}
		default:
			c.script, c.rest = "leave", ""
			if exclusive {
				c.script = "release"
			}
			if w.once(2) {
				c.id = ""
			}
			if w.once(3) {
				c.token = l.token + c.tokens - 1
				if exclusive {
					c.token = w.last + w.rand.Int64N(1_000_000) // handed on, faster than a clock
				}
			}
		}
	}
	if l.before = append(l.before, c); len(l.before) > 8 {
		l.before = l.before[1:]
	}
	return l, c
}

// answered takes the answer to a call.
func (w *world) answered(l *locker, c asked, reply any, a, b int64, s seen) error {
	was := w.q
	number, err := int64(0), error(nil)
	if c.script == "line" {
		c.script = "acquire"
		if reply, number, err = w.numbered(c, reply); reply == nil && l != nil {
			l.want, l.holds = asked{}, false // a newer caller has come
		}
	}
	if err == nil && reply != nil {
		err = w.check(c, reply, a, b, s)
	}
	if w.calls = append(w.calls, fmt.Sprintf("[%d,%d] %+v: %v; %+v", a, b, c, reply, s)); len(w.calls) > 12 {
		w.calls = w.calls[1:]
	}
	if err != nil {
		return fmt.Errorf("%s: %w\nlist before: %q\nbarrier %+v, exclusive %q %+v\ncalls:\n%s",
			w.key, err, was, w.barrier, w.holder, w.exclusive, strings.Join(w.calls, "\n"))
	}
	if s.message != "" && !partial(s.message) {
		w.freed = s.message
	}
	if l == nil || reply == nil {
		return nil
	}
	l.want.number = number
	reply, _ = roomy(reply)
	switch n, ok := reply.(int64); {
	case c.script == "acquire" || c.script == "enter":
		if l.holds = ok; ok {
			l.token = n
		}
	case c.script == "leave" || c.script == "release" || n <= 0:
		l.want, l.holds = asked{}, false
	}
	return nil
}

// A lock that became free has no barrier any more, even if the last place but one ended
// at about that instant.
func TestTheModelForgetsABarrierThatWentWithItsKey(t *testing.T) {
	w := newWorld("k", 1)
	for i, step := range []struct {
		asked
		reply any
		at    int64 // ms
		seen
	}{
		{asked{script: "enter", owner: "x", lease: 100, tokens: 1}, int64(1), 0, seen{exists: true, lockMS: 1100, fence: 1}},
		{asked{script: "enter", owner: "y", lease: 900, tokens: 1}, int64(2), 0, seen{exists: true, lockMS: 1900, fence: 2}},
		{asked{script: "acquire", owner: "z", lease: 9, id: "a", left: 700}, []any{"x,y", int64(900), int64(1)}, 10, seen{exists: true, q: "a", lockMS: 1890, fence: 2}},
		{asked{script: "leave", owner: "y"}, int64(1), 100, seen{message: "a", lockMS: -2, fence: 2}},
		{asked{script: "enter", owner: "v", lease: 900, tokens: 1}, int64(3), 101, seen{exists: true, lockMS: 1900, fence: 3}},
		{asked{script: "enter", owner: "w", lease: 900, tokens: 1}, int64(4), 102, seen{exists: true, lockMS: 1900, fence: 4}},
	} {
		if err := w.answered(nil, step.asked, step.reply, step.at*1000, step.at*1000+10, step.seen); err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
	}
}
