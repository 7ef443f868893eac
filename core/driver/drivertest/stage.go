package drivertest

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

// stage is the store under test with the memory of the actors.
type stage struct {
	*testing.T
	store   driver.Store
	prefix  string    // of all keys and lockers: no other test uses it
	round   int       // of a repeated block
	asides  int       // how many owners the stage has made for itself
	came    int64     // how many newest callers have asked
	ends    time.Time // of the innermost within block; zero outside of such a block
	noted   time.Time
	answers map[string]driver.Reply                     // by key and actor: the last with a token or a number
	highest map[string]int64                            // by key: the highest token of any owner
	offered map[string]int64                            // by actor: the token of its last offer
	news    map[string]map[driver.News]chan driver.Call // by actor: the calls to its locker
	stops   map[string]func()                           // by actor: ends the calls
}

func newStage(t *testing.T, store driver.Store) *stage {
	return &stage{
		T: t, store: store, prefix: "drivertest/" + rand.Text() + "/",
		answers: map[string]driver.Reply{}, highest: map[string]int64{}, offered: map[string]int64{},
		news: map[string]map[driver.News]chan driver.Call{}, stops: map[string]func(){},
	}
}

// errLate marks a failure in a block that took too long to count.
var errLate = errors.New("the block took too long")

func (s *stage) all(steps []step) error {
	for i := range steps {
		if err := s.step(&steps[i]); err != nil {
			return err
		}
	}
	if len(steps) == 0 {
		return errors.New("a scenario or a block has no steps")
	}
	return nil
}

func (s *stage) step(p *step) (err error) {
	switch p.directive.name {
	case "within":
		began, outer := time.Now(), s.ends
		s.ends = began.Add(p.directive.d)
		if err = s.all(p.steps); err != nil && !time.Now().Before(s.ends) {
			err = fmt.Errorf("%w\n%w: %v", err, errLate, time.Since(began))
		}
		s.ends = outer
		return err
	case "repeat":
		for s.round = 0; s.round < p.directive.n && err == nil; s.round++ {
			err = s.all(p.steps)
		}
		s.round = 0
		return err
	case "note":
		s.noted = time.Now()
	case "pause":
		time.Sleep(p.directive.d)
	case "elapsed":
		err = compare(p.directive, time.Since(s.noted), p.directive.d)
	default:
		if err = p.verb.run(s, p); err != nil && p.until {
			err = s.until(func() error { return p.verb.run(s, p) })
		}
	}
	if err != nil {
		return fmt.Errorf("%s: %s\n%s", p.at, p.text, strings.ReplaceAll(err.Error(), s.prefix, ""))
	}
	return nil
}

// soon is the end of the patience.
func soon() time.Time { return time.Now().Add(patience) }

// end is the instant when a step gives up: after the end of a within block no failure counts.
func (s *stage) end() time.Time { return cmp.Or(s.ends, soon()) }

// until calls f until it returns no error.
func (s *stage) until(f func() error) error {
	for end := s.end(); ; time.Sleep(5 * time.Millisecond) {
		if err := f(); err == nil || time.Now().After(end) {
			return err
		}
	}
}

// key returns the name of a key in the store. A name in quotes may have any bytes.
func (s *stage) key(name string) string {
	if quoted, err := strconv.Unquote(name); err == nil {
		return s.prefix + quoted
	}
	return s.prefix + name
}

// id is the id of an actor's locker: a for the actors a, a:2 and a!.
func (s *stage) id(actor string) string {
	id, _, _ := strings.Cut(strings.TrimSuffix(actor, "!"), ":")
	return s.prefix + id
}

// owner returns the owner of an actor, another one in each round of a repeated block.
func (s *stage) owner(actor string) string {
	name, attentive := strings.CutSuffix(actor, "!")
	id, n, _ := strings.Cut(name, ":")
	switch {
	case name == "none" || name == "unknown":
		return ""
	case n == "offer":
		n = strconv.FormatInt(s.offered[id], 10)
	case s.round > 0:
		n = fmt.Sprintf("%s%03d", cmp.Or(n, "1"), s.round)
	}
	if name = s.prefix + id + ":" + cmp.Or(n, "1"); attentive {
		return driver.Attentive(name)
	}
	return name
}

// waiter returns the waiting locker of a request: the word wait stands for the id of the actor's
// locker, before it + for a place, and after it ~ and the patience.
func (s *stage) waiter(p *step) driver.Waiter {
	w := p.asks.get("wait")
	if w.name == "" {
		return ""
	}
	return driver.Waiter(w.op + s.id(p.actor) + w.value)
}

// value returns the value of a word as a number: an actor stands for its token or its number, and
// "all" for the highest token; another number may be added. A missing word is zero.
func (s *stage) value(p *step, w word) int64 {
	name, more, _ := strings.Cut(w.value, "+")
	add, _ := strconv.ParseInt(more, 10, 64) // zero if nothing is added
	n, err := strconv.ParseInt(name, 10, 64)
	answer, known := s.answers[p.key+" "+name]
	switch {
	case err == nil || w.name == "":
	case name == "all":
		n = s.highest[p.key]
	case !known:
		s.Fatalf("%s: %s\n%s has no answer yet", p.at, p.text, name)
	case w.name == "number":
		n = answer.Number
	default:
		n = answer.Token
	}
	return n + add
}

func compare[N int64 | time.Duration](w word, got, want N) error {
	if ok := map[string]bool{"=": got == want, ">": got > want, ">=": got >= want, "<": got < want, "<=": got <= want}[w.op]; !ok {
		return fmt.Errorf("%s is %v; expected is %s %v", w.name, got, w.op, want)
	}
	return nil
}

// compares compares an answer with the words that have values.
func (s *stage) compares(p *step, rep driver.Reply) (err error) {
	for i := 0; i < len(p.wants) && err == nil; i++ {
		switch w := p.wants[i]; w.name {
		case "token":
			err = compare(w, rep.Token, s.value(p, w))
		case "number":
			err = compare(w, rep.Number, s.value(p, w))
		case "ttl":
			if rep.TTL >= 0 || !strings.HasSuffix(w.value, "|unknown") {
				err = compare(w, rep.TTL, w.d)
			}
		case "holder":
			for holder := range strings.SplitSeq(rep.Holder, ",") {
				if !slices.ContainsFunc(strings.Split(w.value, "|"), func(actor string) bool { return s.owner(actor) == holder }) {
					err = fmt.Errorf("the holder is %q; expected is %s", holder, w.value)
				}
			}
		}
	}
	return err
}
