package explore

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/interlock-go/interlock/core/memstore"
)

// ErrLost is the error of a call whose connection broke: the request did not arrive, or the answer was lost. The
// caller cannot know which.
var ErrLost = errors.New("explore: the connection broke before the answer")

// kind says what can happen at a place.
type kind uint8

const (
	point   kind = iota // a step of the process: it has no answer that could be lost
	call                // a call to the outside
	request             // a request to the store
	answer              // an answer that is on its way to the client
	message             // a message that the broker delivers
)

// action is a fault at a place.
type action uint8

// The actions.
const (
	dies action = iota
	loses
	pauses
	standsStill
	cutOff
	twice
	late
)

// place is a place in a run where something can happen.
type place struct {
	process string
	cause   string
	label   string // with its number, from the second visit on
	after   bool
	kind    kind
}

// actions are the actions that are possible at a place.
func (p place) actions() []action {
	switch {
	case p.kind == message:
		return []action{twice, late}
	case p.kind == point:
		return []action{dies, pauses, standsStill}
	case p.kind == answer:
		return []action{dies, loses}
	case p.kind == request && !p.after:
		return []action{dies, loses, pauses, standsStill, cutOff}
	}
	return []action{dies, loses, pauses, standsStill}
}

// fault is an action at a place.
type fault struct {
	place
	action action
}

// String returns the text of a fault in a path.
func (f fault) String() string {
	when := "before "
	if f.after {
		when = "after "
	}
	switch f.action {
	case dies:
		return f.process + " dies " + when + f.label
	case pauses:
		return f.process + " pauses " + when + f.label
	case standsStill:
		return f.process + " stands still " + when + f.label
	case cutOff:
		return f.process + " is cut off " + when + f.label
	case twice:
		return f.label + " comes twice"
	case late:
		return f.label + " comes late"
	}
	if f.after || f.kind == answer {
		return f.process + " loses the answer of " + f.label
	}
	return f.process + " loses " + f.label
}

// visit is one passage of a goroutine through the two places of a call.
type visit struct {
	process      *Process
	cause, label string
	kind         kind
}

func (p *Process) visit(cause, label string, k kind) *visit {
	return &visit{process: p, cause: cause, label: label, kind: k}
}

// enter waits for the turn of the goroutine, at the place before the call. An error says that the call must not be
// carried out.
func (v *visit) enter() error {
	p, w := v.process, v.process.world
	if !w.turn(p, v.label) {
		if v.kind == request {
			return errDead
		}
		return p.gone(v.label)
	}
	w.mu.Lock()
	p.seen[v.label]++
	if n := p.seen[v.label]; n > 1 {
		v.label = fmt.Sprintf("%s (%d)", v.label, n)
	}
	if v.kind != answer {
		w.noteLocked(p.name, v.cause, v.label, "")
	}
	return v.happen(false)
}

// leave is the place after the call. An error says that the answer is lost.
func (v *visit) leave() error {
	v.process.world.mu.Lock()
	return v.happen(true)
}

// happen injects the fault of a place. The caller holds the mutex of the world, and happen gives it back.
func (v *visit) happen(after bool) error {
	p, w := v.process, v.process.world
	f, faulty := w.inject(place{p.name, v.cause, v.label, after, v.kind})
	if faulty && f.action != cutOff {
		w.carryOut(p, f.action)
	}
	w.mu.Unlock()
	if faulty && f.action == cutOff {
		w.cut(p)
	}
	lost := faulty && f.action == loses
	switch {
	case v.kind == request && lost:
		return ErrLost
	case v.kind == request:
		return nil
	case !w.stands(p, v.label):
		return p.gone(v.label)
	case lost:
		return ErrLost
	}
	return nil
}

// carryOut has a process die or stand still. The caller holds w.mu.
func (w *World) carryOut(p *Process, a action) {
	switch {
	case p.dead:
	case a == dies:
		w.die(p)
	case a == pauses && p.resumed == nil:
		w.still(p, pause)
	case a == standsStill && p.resumed == nil:
		w.still(p, w.service.Still)
	}
}

// inject notes a place, and returns its fault. The caller holds w.mu.
func (w *World) inject(at place) (fault, bool) {
	w.places = append(w.places, at)
	for _, a := range at.actions() {
		f := fault{at, a}
		if w.plan[f.String()] {
			w.injected = append(w.injected, f)
			w.noteLocked(at.process, at.cause, at.label, "FAULT: "+f.String())
			return f, true
		}
	}
	if w.draw != nil && w.draw(len(w.injected)) {
		all := at.actions()
		f := fault{at, all[w.choose(len(all))]}
		w.injected = append(w.injected, f)
		w.noteLocked(at.process, at.cause, at.label, "FAULT: "+f.String())
		return f, true
	}
	return fault{}, false
}

// intercept is the fault of a request to the store. The store itself keeps the requests of a process that is dead or
// stands still.
func (p *Process) intercept(r memstore.Request) memstore.Fault {
	v := p.visit("", p.world.describe(r), request)
	if err := v.enter(); err != nil {
		return memstore.LostRequest
	}
	w := p.world
	w.mu.Lock()
	defer w.mu.Unlock()
	if p.dead || w.ended {
		return memstore.Fault{}
	}
	f, faulty := w.inject(place{p.name, "", v.label, true, request})
	if !faulty {
		return memstore.Fault{}
	}
	if f.action == loses {
		return memstore.LostReply
	}
	return memstore.Fault{Then: func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.carryOut(p, f.action)
	}}
}

// describe names a request to the store, as the report has it.
func (w *World) describe(r memstore.Request) string {
	name := string(r.Op)
	switch r.Op {
	case memstore.Acquire, memstore.Stand, memstore.Renew, memstore.Release, memstore.Decline:
		return name + " " + r.Key
	case memstore.Mark:
		if name = "MarkEffect"; r.HandOver {
			name = "HandOver"
		}
	case memstore.Commit:
		name = "commit of the answer"
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.names[r.Key] == 0 {
		w.names[r.Key] = len(w.names) + 1
	}
	if n := w.names[r.Key]; n > 1 {
		name += fmt.Sprintf(" of record %d", n)
	}
	return name
}

// path returns the text of the faults of a run.
func path(s setting, faults []fault) string {
	texts := make([]string, 0, len(faults))
	for _, f := range faults {
		texts = append(texts, f.String())
	}
	return string(s) + ": " + strings.Join(texts, "; then ")
}

// parsePath returns the setting and the texts of the faults.
func parsePath(text string) (s setting, plan []string, err error) {
	before, after, ok := strings.Cut(text, ": ")
	if s = setting(before); !ok || !slices.Contains([]setting{alone, together}, s) {
		return "", nil, fmt.Errorf(`explore: the path %q does not begin with "alone: " or "together: ": copy it from a report`, text)
	}
	if after == "" {
		return s, nil, nil
	}
	return s, strings.Split(after, "; then "), nil
}
