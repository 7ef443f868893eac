package run

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/memstore"
	_ "github.com/interlock-go/interlock/internal/bubble"
)

// fakeChild is a command that notes its signals and their times.
type fakeChild struct {
	begin time.Time
	store *memstore.Store
	done  chan struct{}
	obeys bool // it ends at SIGTERM
	held  bool // the server had the lock when the command ended
	// immortal says that SIGKILL does not reach it, and outlived are the processes that it leaves.
	immortal bool
	outlived []int

	mu  sync.Mutex
	got []string
}

func (f *fakeChild) note(what string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.got = append(f.got, fmt.Sprintf("%s at %v", what, time.Since(f.begin)))
}

func (f *fakeChild) exited() <-chan struct{} { return f.done }
func (f *fakeChild) pass(sig os.Signal)      { f.note(sig.String()) }
func (f *fakeChild) status() int             { return 5 }
func (f *fakeChild) resume()                 {}
func (f *fakeChild) look() string            { return "" }
func (f *fakeChild) survivors() []int        { return f.outlived }

func (f *fakeChild) end() {
	_, _, f.held = f.store.Holder(key)
	close(f.done)
}

func (f *fakeChild) terminate() {
	f.note("SIGTERM")
	if f.obeys {
		f.end()
	}
}

func (f *fakeChild) killAll() {
	f.note("SIGKILL")
	if f.immortal {
		return
	}
	select {
	case <-f.done: // the rest of the group is killed
	default:
		f.end()
	}
}

const key = "k"

// bubble is a wrapper in a bubble, with a lease of 30 s. begin starts the command.
type bubble struct {
	store *memstore.Store
	child *fakeChild
	watch *watch
	loss  chan core.Loss
	said  []string
}

// inBubble runs a command, and waits for its end. The exit status must be want.
func inBubble(t *testing.T, want int, test func(b *bubble)) *bubble {
	t.Helper()
	b := &bubble{store: memstore.New()}
	synctest.Test(t, func(t *testing.T) {
		cmd, err := (&Flags{wait: forever, ttl: defaultTTL, grace: -1}).Command(key, []string{"true"})
		if err != nil {
			t.Fatal(err)
		}
		b.loss = make(chan core.Loss, 1) // of the bubble
		locker, err := core.New(b.store, core.Watchdog(cmd.ttl), core.OnLost(func(l core.Loss) { b.loss <- l }))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = locker.Close(context.Background()) }() // a lock may be lost
		lease, err := locker.Lock(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		b.child = &fakeChild{begin: time.Now(), store: b.store, done: make(chan struct{})}
		log := logger{func(line string) { b.said = append(b.said, line) }, key}
		b.watch = &watch{command: cmd, lease: lease, child: b.child, log: log}
		go test(b)
		b.watch.until(nil, nil)
		b.store.Intercept(nil)
		if got := b.watch.status(lease.Release(t.Context()), b.loss); got != want {
			t.Errorf("status %d, want %d; it said %q", got, want, b.said)
		}
	})
	return b
}

// wants checks the signals that the command got.
func (b *bubble) wants(t *testing.T, want ...string) {
	t.Helper()
	if !slices.Equal(b.child.got, want) {
		t.Errorf("the command got %q, want %q", b.child.got, want)
	}
}

// docs/run.md shows these times: the last confirmed renewal was sent at 0 s.
func TestACommandThatIsCutOffIsEndedBeforeTheServerLetsGo(t *testing.T) {
	for name, fault := range map[string]memstore.Fault{
		"refused": memstore.Unreachable, "swallowed": {Before: time.Hour}, "the replies swallowed": {After: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			b := inBubble(t, StatusLost, func(b *bubble) {
				b.store.Intercept(func(memstore.Request) memstore.Fault { return fault })
			})
			b.wants(t, "SIGTERM at 23.198s", "SIGKILL at 28.198s", "SIGKILL at 28.198s")
			if !b.child.held {
				t.Error("the server let the lock go before the command had ended")
			}
		})
	}
}

func TestAShortInterruptionDoesNotEndTheCommand(t *testing.T) {
	inBubble(t, 5, func(b *bubble) {
		b.store.Intercept(func(memstore.Request) memstore.Fault { return memstore.Unreachable })
		time.Sleep(22 * time.Second)
		b.store.Intercept(nil)
		time.Sleep(time.Hour)
		b.child.end()
	}).wants(t)
}

func TestARenewalAfterSIGTERMComesTooLate(t *testing.T) {
	inBubble(t, StatusLost, func(b *bubble) {
		b.store.Intercept(func(memstore.Request) memstore.Fault { return memstore.Unreachable })
		time.Sleep(24 * time.Second)
		b.store.Intercept(nil)
	}).wants(t, "SIGTERM at 23.198s", "SIGKILL at 28.198s", "SIGKILL at 28.198s")
}

func TestACommandWhoseLockWasTakenIsEndedAtTheNextRenewal(t *testing.T) {
	for name, change := range map[string]func(s *memstore.Store){
		"deleted": func(s *memstore.Store) { s.Expire(key) }, "taken over": func(s *memstore.Store) { s.Take(key, time.Hour) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, StatusLost, func(b *bubble) { change(b.store) }).wants(t, "SIGTERM at 10s", "SIGKILL at 15s", "SIGKILL at 15s")
		})
	}
}

// Children of the command may outlive it.
func TestWhatIsLeftOfACommandThatObeysIsKilled(t *testing.T) {
	inBubble(t, StatusLost, func(b *bubble) {
		b.child.obeys = true
		b.store.Expire(key)
	}).wants(t, "SIGTERM at 10s", "SIGKILL at 10s")
}

// A loss that only the release finds is a loss all the same.
func TestTheLossIsReportedForACommandThatEndsBeforeItIsNoticed(t *testing.T) {
	b := inBubble(t, StatusLost, func(b *bubble) {
		b.store.Expire(key)
		b.child.end()
	})
	if b.wants(t); !strings.Contains(strings.Join(b.said, "\n"), "deleted") {
		t.Errorf("it said %q", b.said)
	}
}

// Nothing can end some processes: processes of another user, processes that wait for a disk, and
// a chain of processes that start each other. A wrapper that ends in silence hides that they run
// together with the next command.
func TestAWrapperSaysWhatOutlivesItsCommand(t *testing.T) {
	b := inBubble(t, StatusLost, func(b *bubble) {
		b.child.obeys, b.child.outlived = true, []int{4711, 4712}
		b.store.Expire(key)
	})
	if said := strings.Join(b.said, "\n"); !strings.Contains(said, "2 processes that the command has started live on") || !strings.Contains(said, "4711") {
		t.Errorf("it said %q; want the processes that live on", said)
	}
	b = inBubble(t, StatusLost, func(b *bubble) {
		b.child.immortal, b.child.outlived = true, []int{4713}
		b.store.Expire(key)
		time.Sleep(time.Hour)
		synctest.Wait()
		b.child.outlived = nil
		b.child.end()
	})
	said := strings.Join(b.said, "\n")
	if strings.Count(said, "has not ended after SIGKILL") != 1 || !strings.Contains(said, "4713") {
		t.Errorf("it said %q; want once that SIGKILL did not help", said)
	}
}
