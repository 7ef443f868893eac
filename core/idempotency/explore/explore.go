package explore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"runtime/pprof"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	_ "github.com/interlock-go/interlock/internal/bubble" // for tests with the race detector
)

// Service is a service under test: how its processes are made, and what comes in. A process needs a Handler, a Consumer, or both.
type Service struct {
	// Handler makes the HTTP handler of a process.
	Handler func(p *Process) http.Handler
	// Consumer makes the function that carries out messages, which come from [Process.Send] and from Messages. A nil error
	// acknowledges a message. After another error it is delivered again, unless once.Permanent says that this has no use, or its outcome is unknown.
	Consumer func(p *Process) func(ctx context.Context, m Message) error

	// Requests are the requests of clients. Default: one request, POST /.
	Requests []Request
	// Messages come from other services. Default: none.
	Messages []Message
	// Outside makes the services that the processes call, by host; see [Process.RoundTrip]. They are made anew for
	// each run, and do not die. Default: each host answers 200.
	Outside map[string]func() http.Handler
	// IgnoresKeys has the hosts outside that do not deduplicate by Idempotency-Key. Default: all do.
	IgnoresKeys []string
	// Start is called at the beginning of each run, so that a test that counts by itself begins anew.
	Start func(w *World)
	// Invariant is asked at the end of each run. A run fails with its error. It is asked besides the invariants that
	// each run has; see the comment of the package.
	Invariant func(w *World) error

	// Processes is the number of processes. Default: 2.
	Processes int
	// Still is for how long a process stands still or is cut off, and a message is late. It must be more than the
	// longest lease. Default: 100 s, which is more than the default leases of 30 s.
	Still time.Duration

	reference *outcome
}

// Option is an option of [Run] and [Find].
type Option func(*search)

// Budget sets the number of runs with two or more faults, after all runs with one fault. Default: 100.
func Budget(runs int) Option { return func(s *search) { s.budget = runs } }

// Seed sets the seed of the runs with two or more faults, which are drawn at random. Default: 1.
func Seed(seed uint64) Option { return func(s *search) { s.seed = seed } }

// Path repeats one run, with the path of a report. Nothing else is explored.
func Path(path string) Option { return func(s *search) { s.path = &path } }

// Run explores a service, and fails the test with the first fault that breaks an invariant. It logs the [Report]. The
// test must not be parallel to tests that need the output of log/slog: it is discarded meanwhile.
func Run(t *testing.T, service Service, opts ...Option) {
	t.Helper()
	r := Find(t, service, opts...)
	if r.Failure != nil {
		t.Errorf("explore: %v", r.Failure)
	}
	t.Logf("explore: %v", r)
}

// Find explores a service as [Run] does, and returns the report. It fails the test only if nothing can be explored.
func Find(t *testing.T, service Service, opts ...Option) *Report {
	t.Helper()
	s := newSearch(t, service, opts)
	defer quiet()()
	if err := s.explore(); err != nil {
		t.Fatal(err)
	}
	return s.report
}

func newSearch(t *testing.T, service Service, opts []Option) *search {
	s := &search{t: t, service: service, budget: 100, seed: 1, report: &Report{}}
	for _, opt := range opts {
		opt(s)
	}
	if s.service.Processes <= 0 {
		s.service.Processes = 2
	}
	if s.service.Still <= 0 {
		s.service.Still = 100 * time.Second
	}
	return s
}

// search is an exploration.
type search struct {
	t       *testing.T
	service Service
	budget  int
	seed    uint64
	path    *string
	report  *Report
}

var (
	errNoService = errors.New("explore: the service has neither a Handler nor a Consumer")
	errNoPlace   = errors.New("explore: the run without faults visited no place: no request to the Store of the Process, no call " +
		"of the Process, and no Point under the context of a request or message")
)

func (s *search) explore() error {
	if s.service.Handler == nil && s.service.Consumer == nil {
		return errNoService
	}
	calm := map[setting]*World{}
	for i, in := range []setting{alone, alone, backward, together} {
		w := s.world(in)
		w.compareRows = i == 3
		broken := s.in(w)
		if broken != "" {
			s.report.fail(w, nil, broken)
			return nil
		}
		switch {
		case s.service.reference == nil:
			s.service.reference = w.outcome()
		case in != together:
			s.service.reference.unlike(w.outcome())
		}
		calm[in] = w
	}
	if s.path != nil {
		return s.follow(*s.path, calm)
	}
	if !calm[alone].visited() {
		return errNoPlace
	}
	s.report.Points = len(calm[alone].places) + len(calm[together].places)
	singles := s.singles(calm)
	s.pairs(calm, singles)
	s.random(calm)
	return nil
}

// visited reports whether the service has passed a place itself: clients and the broker always do.
func (w *World) visited() bool {
	return slices.ContainsFunc(w.places, func(p place) bool { return p.kind != answer && p.kind != message })
}

// single is a run with one fault.
type single struct {
	fault fault
	in    setting
	then  []fault // the faults that are possible afterwards
}

// order is the order of the exploration. With company, interleavings come first: a process
// pauses while others go on.
var order = []struct {
	in      setting
	actions []action
}{
	{alone, []action{dies, loses, standsStill, cutOff, twice, late}},
	{together, []action{pauses, standsStill, dies, loses, cutOff, twice, late}},
}

// singles runs each single fault at each place.
func (s *search) singles(calm map[setting]*World) (all []single) {
	for _, o := range order {
		for _, action := range o.actions {
			var failed *World
			var why string
			for _, f := range faultsAt(calm[o.in].places) {
				if f.action != action {
					continue
				}
				w, broken := s.run(o.in, f)
				all = append(all, single{f, o.in, w.later()})
				if broken == "" {
					continue
				}
				s.report.Failed++
				// A process that stands still at an early place can be late at all places that follow. The last place where
				// it fails in this way is next to the fault.
				if failed == nil || (action == pauses || action == standsStill) && why == broken {
					failed, why = w, broken
				}
			}
			if failed != nil {
				s.report.keep(failed, calm[o.in].places, why)
			}
		}
	}
	return all
}

// later returns the faults that are possible after the last injected one.
func (w *World) later() []fault {
	if len(w.injected) == 0 {
		return nil
	}
	last := w.injected[len(w.injected)-1].place
	for i, p := range w.places {
		if p == last {
			return faultsAt(w.places[i+1:])
		}
	}
	return nil
}

func faultsAt(places []place) (all []fault) {
	for _, p := range places {
		for _, a := range p.actions() {
			all = append(all, fault{p, a})
		}
	}
	return all
}

// pairs runs pairs of faults: all of them if the budget suffices, or else as many as it has, drawn at random.
func (s *search) pairs(calm map[setting]*World, singles []single) {
	type pair struct {
		in            setting
		first, second fault
	}
	var all []pair
	for _, first := range singles {
		for _, second := range first.then {
			all = append(all, pair{first.in, first.fault, second})
		}
	}
	s.report.Pairs = len(all)
	r := rand.New(rand.NewPCG(s.seed, 1)) //nolint:gosec // to be repeated, not to be secret
	if half := (s.budget + 1) / 2; len(all) > half {
		r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		all = all[:half]
	}
	for _, p := range all {
		if s.report.Failure != nil {
			return
		}
		s.budget--
		s.judged(p.in, calm, p.first, p.second)
	}
}

// random runs with faults at places that are drawn, and shortens the sequence of a failing run.
func (s *search) random(calm map[setting]*World) {
	for i := 0; i < s.budget && s.report.Failure == nil; i++ {
		r := rand.New(rand.NewPCG(s.seed, uint64(i)+2)) //nolint:gosec // to be repeated, not to be secret
		in := []setting{alone, together}[r.IntN(2)]
		often := len(calm[in].places)/2 + 1
		w := s.world(in)
		w.draw, w.choose = func(n int) bool { return n < 4 && r.IntN(often) == 0 }, r.IntN
		if broken := s.in(w); broken != "" {
			s.shorten(calm, w, broken)
		}
	}
}

// shorten leaves out one fault after the other, as long as the run still fails.
func (s *search) shorten(calm map[setting]*World, w *World, broken string) {
	for i := 0; i < len(w.injected) && len(w.injected) > 1; {
		fewer := append(append([]fault(nil), w.injected[:i]...), w.injected[i+1:]...)
		again, still := s.run(w.setting, fewer...)
		if still == "" {
			i++
			continue
		}
		w, broken, i = again, still, 0
	}
	s.report.fail(w, calm[w.setting].places, broken)
}

// follow repeats the run of a path.
func (s *search) follow(text string, calm map[setting]*World) error {
	in, plan, err := parsePath(text)
	if err != nil {
		return err
	}
	w := s.world(in)
	for _, p := range plan {
		w.plan[p] = true
	}
	broken := s.in(w)
	if broken != "" {
		s.report.fail(w, calm[in].places, broken)
	}
	if s.report.Trace = w.lines(); len(w.injected) < len(plan) {
		return fmt.Errorf("explore: %d of the %d faults of the path %q took place: %s", len(w.injected), len(plan), text, path(in, w.injected))
	}
	return nil
}

// judged runs with some faults, and notes a failure.
func (s *search) judged(in setting, calm map[setting]*World, faults ...fault) *World {
	w, broken := s.run(in, faults...)
	if broken != "" {
		s.report.fail(w, calm[in].places, broken)
	}
	return w
}

func (s *search) run(in setting, faults ...fault) (*World, string) {
	w := s.world(in)
	for _, f := range faults {
		w.plan[f.String()] = true
	}
	return w, s.in(w)
}

func (s *search) world(in setting) *World {
	return &World{service: &s.service, setting: in, plan: map[string]bool{}, compareRows: true}
}

// in runs a world in a bubble.
func (s *search) in(w *World) (broken string) {
	var err error
	defer w.watch()()
	synctest.Test(s.t, func(*testing.T) { broken, err = w.guarded() })
	if err != nil {
		s.t.Fatal(err)
	}
	s.report.Runs++
	return broken
}

// watch ends the program if no goroutine of a run goes on: testing/synctest does not see that. It returns the end of the watch.
func (w *World) watch() (end func()) {
	done := make(chan struct{})
	go func() {
		const patience = 2 * time.Minute
		for last := int64(-1); ; {
			select {
			case <-done:
				return
			case <-time.After(patience):
			}
			now := w.steps.Load()
			if now == last {
				_ = pprof.Lookup("goroutine").WriteTo(os.Stderr, 2)
				panic(fmt.Sprintf("explore: no goroutine of a run has gone on for %v. Perhaps one waits for a sync.Mutex while the holder calls "+
					"the store or a service outside: fake time cannot go on then. The stacks are above", patience))
			}
			last = now
		}
	}()
	return sync.OnceFunc(func() { close(done) })
}

// guarded is run, and returns a panic as an error: it has a name then.
func (w *World) guarded() (broken string, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("explore: a process could not be made: %v", v)
			w.end()
		}
	}()
	return w.run(), nil
}
