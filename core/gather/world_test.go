package gather_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/gather"
	"github.com/interlock-go/interlock/core/memstore"
	_ "github.com/interlock-go/interlock/internal/bubble"
	"github.com/interlock-go/interlock/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a store with one process, and sections that end when the test says so.
type world struct {
	t      *testing.T
	store  *memstore.Store
	locker *core.Locker
	group  *gather.Group[string, string]
	calls  sync.WaitGroup

	mu      sync.Mutex
	batches []string // as "key: a b c"
	ends    chan end // nil: sections end at once
}

// end is the end of a section.
type end struct {
	err     error
	results []string // nil: "done a" for the item a
	panics  bool
}

// inBubble runs a test in a bubble, with a world of one process.
func inBubble(t *testing.T, test func(t *testing.T, w *world), opts ...gather.Option) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		testkit.LogTo(t)
		w := newWorld(t, memstore.New(), opts...)
		test(t, w)
		w.calls.Wait()
	})
}

func newWorld(t *testing.T, store *memstore.Store, opts ...gather.Option) *world {
	t.Helper()
	w := &world{t: t, store: store, ends: make(chan end, 100)}
	w.locker = testkit.LockerOn(t, store)
	w.group = gather.New(w.locker, w.section, opts...)
	return w
}

func (w *world) section(ctx context.Context, key string, batch []string) (results []string, err error) {
	w.mu.Lock()
	w.batches = append(w.batches, fmt.Sprint(key, ": ", batch))
	w.mu.Unlock()
	for _, item := range batch {
		results = append(results, "done "+item)
	}
	if w.ends == nil {
		return results, nil
	}
	select {
	case e := <-w.ends:
		if e.panics {
			panic("the section fails")
		}
		if e.results != nil {
			results = e.results
		}
		return results, e.err
	case <-ctx.Done():
		return results, nil // a section that does not see that its lock is lost
	}
}

// ran returns the batches so far, and forgets them.
func (w *world) ran() string {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	all := fmt.Sprint(w.batches)
	w.batches = nil
	return all
}

func (w *world) wantRan(want ...string) {
	w.t.Helper()
	if got := w.ran(); got != fmt.Sprint(want) {
		w.t.Errorf("the batches %s; want %s", got, want)
	}
}

// call is a call of Do.
type call struct {
	t     *testing.T
	leave context.CancelCauseFunc
	done  chan struct{}
	res   string
	err   error
	panic any
}

// do calls Do, and returns when the call waits or has ended.
func (w *world) do(key, item string) *call { return w.doIn(w.t.Context(), key, item) }

func (w *world) doIn(ctx context.Context, key, item string) *call {
	w.t.Helper()
	ctx, leave := context.WithCancelCause(ctx)
	c := &call{t: w.t, leave: leave, done: make(chan struct{})}
	w.calls.Go(func() {
		defer leave(nil)
		defer close(c.done)
		defer func() { c.panic = recover() }()
		c.res, c.err = w.group.Do(ctx, key, item)
	})
	synctest.Wait()
	return c
}

// has returns the outcome of a call that has to have ended.
func (c *call) has() (string, error) {
	c.t.Helper()
	synctest.Wait()
	select {
	case <-c.done:
	default:
		c.t.Fatal("the call has not ended")
	}
	return c.res, c.err
}

func (c *call) want(res string, errs ...error) {
	c.t.Helper()
	got, err := c.has()
	if got != res || len(errs) == 0 && err != nil {
		c.t.Errorf("%q, %v; want %q, %v", got, err, res, errs)
	}
	wantErrors(c.t, err, errs...)
}

func (c *call) waits() {
	c.t.Helper()
	synctest.Wait()
	select {
	case <-c.done:
		c.t.Errorf("the call has ended with %q, %v; want it to wait", c.res, c.err)
	default:
	}
}

// heldElsewhere has another process hold a lock until the function free is called.
func (w *world) heldElsewhere(key string) (free func()) {
	w.t.Helper()
	lease, err := testkit.LockerOn(w.t, w.store).Lock(w.t.Context(), key)
	if err != nil {
		w.t.Fatal(err)
	}
	return func() {
		if err := lease.Release(w.t.Context()); err != nil {
			w.t.Error(err)
		}
	}
}
