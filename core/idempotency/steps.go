package idempotency

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/internal/steplog"
)

// steps are the steps of an attempt; guarded by the mutex of the attempt.
type steps struct {
	lane      chan struct{} // of the request to the store: one at a time
	log       []byte        // all entries, confirmed by the store or not
	last      string        // the last step with an outcome in log
	open      string        // the open step according to log
	unsettled string        // a step with Once that began, and has no outcome that the store has confirmed
	alone     bool          // a step with Once is under way
	underWay  int
	reserved  int   // bytes, for the outcomes of steps under way
	broken    error // the text in the store is not known: nothing more is stored
	byName    map[string]*stepState
}

// stepState is the state of a step in an attempt.
type stepState struct {
	entry    *steplog.Entry // the outcome that is stored
	unstored *steplog.Entry // the outcome that the store has not confirmed
	asked    bool           // the handler of this attempt has the outcome
	underWay bool
	unsure   bool // with Once: it failed, and may have had its effect
}

// through is the state of a step of a request without a record.
var through = &stepState{}

// stepRun is one call of Step.
type stepRun struct {
	stepOptions
	attempt *attempt
	name    string
	ctx     context.Context // of the caller
	state   *stepState
	entered bool  // leave ends it
	room    int   // reserved, in bytes
	failure error // the final error of the function
	own     enlistment
	calls   calls
}

type stepKey struct{}

// stepOf returns the step of an attempt that ctx belongs to; nil if there is none.
func stepOf(ctx context.Context, a *attempt) *stepRun {
	if r, _ := ctx.Value(stepKey{}).(*stepRun); r != nil && r.attempt == a {
		return r
	}
	return nil
}

var (
	errStepName     = fmt.Errorf("%w: the name of a step has 1 to %d characters; letters, digits and . _ - / : are accepted", core.ErrConfig, maxStepName)
	errStepInside   = fmt.Errorf("%w: %w", core.ErrConfig, errors.New("it begins inside of another step"))
	errStepTwice    = fmt.Errorf("%w: %w", core.ErrConfig, errors.New("this attempt has carried out a step with this name: each step has its own name"))
	errStepAtOnce   = fmt.Errorf("%w: %w", core.ErrConfig, errors.New("a step with this name is under way in this attempt: each step has its own name"))
	errOnceAtOnce   = fmt.Errorf("%w: %w", core.ErrConfig, errors.New("another step with Once is under way, or its outcome is not stored: they run one after the other"))
	errStepUnsure   = fmt.Errorf("%w: %w", ErrOutcomeUnknown, errors.New("the step began, and must not run twice"))
	errStepOver     = fmt.Errorf("%w: %w", core.ErrConfig, errors.New("the step has ended"))
	errStepUnderWay = fmt.Errorf("%w: %w", core.ErrConfig, errors.New("a step is under way"))
)

// enterStep finds out what to do for a call of Step. Without an error the caller calls leave.
func enterStep(ctx context.Context, name string, opts []StepOption) (*stepRun, error) {
	a, o := fromContext(ctx), stepOptionsOf(opts)
	switch {
	case a == nil:
		return nil, ErrNoAttempt
	case o.err != nil:
		return nil, o.err
	case !validStep(name):
		return nil, errStepName
	case stepOf(ctx, a) != nil:
		return nil, errStepInside
	}
	r := &stepRun{stepOptions: o, attempt: a, name: name, ctx: ctx, state: through}
	if a.engine == nil {
		return r, nil
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ticketing != ticketNone {
		return nil, errGiven
	}
	err := a.live()
	if err == nil {
		err = a.readSteps()
	}
	if err == nil {
		err = a.steps.enter(r, a.engine.config.maxSteps)
	}
	return r, err
}

const maxStepName = 64

func validStep(name string) bool {
	if name == "" || len(name) > maxStepName {
		return false
	}
	for _, c := range []byte(name) {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && !strings.ContainsRune("._-/:", rune(c)) {
			return false
		}
	}
	return true
}

// readSteps reads the stored steps when the first step begins. The caller has a.mu.
func (a *attempt) readSteps() error {
	if a.steps != nil {
		return nil
	}
	all, err := steplog.Read(a.stored)
	if err != nil {
		return damaged("%w", err)
	}
	s := &steps{lane: make(chan struct{}, 1), log: []byte(a.stored), byName: make(map[string]*stepState)}
	resumable := a.engine.config.resumable && ticketProtocols[a.protocol] != 0
	for i, e := range all {
		if e.Kind.Outcome() {
			s.byName[e.Name], s.last = &stepState{entry: &all[i]}, e.Name
		}
		resumable = resumable && e.Kind != steplog.Origin
	}
	if resumable { // it comes along with the first step
		s.log = steplog.Append(s.log, a.originEntry())
	}
	a.steps = s
	return nil
}

// enter is called with the mutex of the attempt.
func (s *steps) enter(r *stepRun, limit int64) error {
	state := s.byName[r.name]
	if state == nil {
		state = &stepState{}
	}
	r.state = state
	switch {
	case state.underWay:
		return errStepAtOnce
	case state.asked:
		return errStepTwice
	case state.entry != nil:
		state.asked = true
		return nil
	case state.unsure && state.unstored == nil:
		return errStepUnsure
	case s.broken != nil:
		return s.broken
	case r.once && (s.alone || s.unsettled != "" && s.unsettled != r.name):
		return errOnceAtOnce
	}
	if state.unstored == nil {
		r.room = 3 * steplog.Size(r.name, 0) // that it begins, has no effect, and is done
	}
	if int64(len(s.log)+s.reserved+r.room) > limit {
		return fmt.Errorf("%w: the record has no room for one more step: it has %d bytes of steps, MaxStepBytes is %d", core.ErrConfig, len(s.log), limit)
	}
	s.byName[r.name] = state
	r.entered, state.underWay = true, true
	s.underWay++
	s.reserved += r.room
	s.alone = s.alone || r.once
	return nil
}

// leave ends a call of Step. After an error or a panic its transaction is rolled back.
func (r *stepRun) leave() {
	if !r.entered {
		return
	}
	if unit := r.takeUnit(); unit != nil {
		r.ended(unit.Rollback(r.ctx))
	}
	r.locked(func(s *steps) {
		r.state.underWay = false
		s.underWay--
		s.reserved -= r.room
		s.alone = s.alone && !r.once
	})
}

// locked calls f with the mutex of the attempt.
func (r *stepRun) locked(f func(s *steps)) {
	r.attempt.mu.Lock()
	defer r.attempt.mu.Unlock()
	f(r.attempt.steps)
}

// run runs the function of a step, and stores its outcome.
func (r *stepRun) run(f func(ctx context.Context) (any, error)) error {
	inside := context.WithValue(r.ctx, stepKey{}, r)
	if r.state == through {
		_, err := f(inside)
		return err
	}
	var unstored *steplog.Entry
	r.locked(func(*steps) { unstored = r.state.unstored })
	if unstored != nil {
		return r.said(r.store(unstored, true))
	}
	if r.once {
		if err := r.begin(); err != nil {
			return r.said(err)
		}
	}
	value, failure := f(inside)
	var nothing *notDone
	switch {
	case failure == nil || errors.Is(failure, ErrFinal):
		return r.said(r.store(r.outcome(value, failure), false))
	case r.once && errors.As(failure, &nothing):
		r.locked(func(s *steps) { s.unsettled, r.state.unsure = "", false })
		if err := r.write(&steplog.Entry{Kind: steplog.Cleared, Name: r.name}); err != nil { // Abandon does it, too
			return fmt.Errorf("%w; %w", failure, r.said(err))
		}
	case r.once:
		return r.said(fmt.Errorf("%w: %w", errStepUnsure, failure))
	}
	return failure
}

// said is an error with the name of the step.
func (r *stepRun) said(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("interlock: step %q: %w", r.name, err)
}

// begin stores that a step with Once begins.
func (r *stepRun) begin() error {
	err := r.write(&steplog.Entry{Kind: steplog.Opened, Name: r.name})
	r.locked(func(s *steps) {
		switch {
		case err != nil: // the step does not begin, also if the store has the entry
			s.open = ""
		case r.attempt.ended:
			err = errReturned
		default:
			s.unsettled, r.state.unsure = r.name, true
		}
	})
	return err
}

// outcome is the entry for the end of a step.
func (r *stepRun) outcome(value any, failure error) *steplog.Entry {
	c, kind := r.attempt.engine.config, steplog.Done
	var payload []byte
	var err error
	if failure != nil {
		r.failure, kind = failure, steplog.Failed
		payload, err = json.Marshal(stepFailure{failure.Error(), codeOf(failure)})
	} else {
		payload, err = encodeResult(r.marshal, value)
	}
	if err == nil {
		payload, err = c.sealStep(payload)
	}
	r.locked(func(s *steps) {
		size, limit := steplog.Size(r.name, len(payload)), c.maxSteps-int64(len(s.log)+s.reserved-r.room)
		if err == nil && int64(size) > limit {
			err = fmt.Errorf("its result takes %d bytes, and the record has room for %d (MaxStepBytes)", size, limit)
		}
	})
	if err != nil {
		r.attempt.engine.log(r.ctx, slog.LevelError, "interlock: the result of a step is not stored; later attempts get ErrStepNotStored", r.said(err))
		kind, payload = steplog.Bare, nil
	}
	return &steplog.Entry{Kind: kind, Name: r.name, Payload: string(payload)}
}

// stepFailure is a stored error.
type stepFailure struct {
	Text string `json:"text"`
	Code string `json:"code,omitempty"`
}

// encodeResult encodes a result. A panic must not make the step run a second time.
func encodeResult(marshal func(any) ([]byte, error), value any) (b []byte, err error) {
	defer func() {
		if p := recover(); p != nil {
			b, err = nil, fmt.Errorf("panic: %v", p)
		}
	}()
	return marshal(value)
}

// result reads the stored outcome of a step into out, or returns the error that it is.
func (r *stepRun) result(out any) error {
	var e *steplog.Entry
	r.locked(func(*steps) { e = r.state.entry })
	if e.Kind == steplog.Bare {
		return ErrStepNotStored
	}
	plain, err := r.attempt.engine.config.openStep(e.Payload)
	if err != nil {
		return r.said(err)
	}
	if e.Kind == steplog.Failed {
		var stored stepFailure
		if err := json.Unmarshal(plain, &stored); err != nil {
			return damaged("the error of a step: %w", err)
		}
		return &StepError{Step: r.name, Text: stored.Text, Code: stored.Code, Replayed: r.failure == nil, err: r.failure}
	}
	if err := r.unmarshal(plain, out); err != nil {
		return fmt.Errorf("%w: decoding it: %w", ErrStepNotStored, err)
	}
	return nil
}

// warnUnasked logs the stored steps that the handler did not ask for: an earlier version of it has
// had them.
func (e *Engine) warnUnasked(ctx context.Context, a *attempt) {
	a.mu.Lock()
	var names []string
	if a.stored != "" && a.readSteps() == nil {
		for name, s := range a.steps.byName {
			if s.entry != nil && !s.asked {
				names = append(names, name)
			}
		}
	}
	a.mu.Unlock()
	if len(names) > 0 {
		slices.Sort(names)
		e.log(ctx, slog.LevelWarn, "interlock: an idempotent request is answered, and its handler did not ask for steps that an earlier attempt has stored: "+
			"another version of the handler may have had their effects", fmt.Errorf("steps %s", strings.Join(names, ", ")))
	}
}
