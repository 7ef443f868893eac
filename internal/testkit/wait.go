package testkit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
)

// Until waits for a state that no event announces.
func Until(tb testing.TB, what string, f func() bool) {
	tb.Helper()
	tick := time.NewTicker(500 * time.Microsecond)
	defer tick.Stop()
	for end := time.Now().Add(Patience); !f(); {
		if (<-tick.C).After(end) {
			tb.Fatal("never: " + what)
		}
	}
}

// Patience bounds every wait of a test. Nothing takes as long that works; it is
// not an expectation of how fast anything is.
const Patience = 20 * time.Second

// GivesUp returns the context of a caller that gives up after some time: by a deadline, or by an end of the context that
// has a later deadline.
func GivesUp(ctx context.Context, after time.Duration, byDeadline bool) (context.Context, context.CancelFunc) {
	if byDeadline {
		return context.WithTimeout(ctx, after)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Hour)
	time.AfterFunc(after, cancel)
	return ctx, cancel
}

// Queued waits until n callers wait in the locker.
func Queued(tb testing.TB, locker *core.Locker, n int) {
	tb.Helper()
	QueuedBefore[struct{}](tb, locker, n)
}

// QueuedBefore is Queued for calls that wait: an answer to any call ends the test at once.
func QueuedBefore[T any](tb testing.TB, locker *core.Locker, n int, answers ...<-chan T) {
	tb.Helper()
	Until(tb, fmt.Sprintf("%d queued", n), func() bool {
		for _, answer := range answers {
			select {
			case o := <-answer:
				tb.Fatalf("a call is answered that should wait for the lock: %+v", o)
			default:
			}
		}
		waiters := 0
		for _, h := range locker.Held() {
			waiters += h.Waiters
		}
		return waiters == n
	})
}

// Receive receives from a channel, and waits for that no longer than Patience.
func Receive[T any](tb testing.TB, c <-chan T, what string) T {
	tb.Helper()
	return ReceiveBefore[T, struct{}](tb, c, what, nil)
}

// ReceiveBefore is Receive of something that a call causes: an answer to the call that comes first
// ends the test at once.
func ReceiveBefore[T, A any](tb testing.TB, c <-chan T, what string, answer <-chan A) (v T) {
	tb.Helper()
	select {
	case v = <-c:
	case o := <-answer:
		tb.Fatalf("a call is answered before %s: %+v", what, o)
	case <-time.After(Patience):
		tb.Fatal("never: " + what)
	}
	return v
}

// Meet waits inside a handler. The end of the context lets it go too, so that a
// failed test does not hang.
func Meet[T any](ctx context.Context, c <-chan T) error {
	select {
	case <-c:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(Patience):
		return errors.New("adaptertest: nothing came")
	}
}

// Gate is the inside of a handler that can be held there.
type Gate struct {
	Inside chan struct{} // one value for each that is in
	Leave  chan struct{} // closed to let them go
}

// NewGate returns a closed gate.
func NewGate() Gate { return Gate{make(chan struct{}, 100), make(chan struct{})} }

// Pass waits at the gate. It lets the handlers of a failed test go in the end.
func (g Gate) Pass() {
	g.Inside <- struct{}{}
	_ = Meet(context.Background(), g.Leave)
}

// DeadlineContext is a context with a deadline that passes when the test closes Over.
type DeadlineContext struct {
	context.Context
	Over chan struct{}
}

// Done implements context.Context.
func (c DeadlineContext) Done() <-chan struct{} { return c.Over }

// Err implements context.Context.
func (c DeadlineContext) Err() error {
	select {
	case <-c.Over:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// LogTo collects the log until the test ends.
func LogTo(tb testing.TB) *Buffer {
	tb.Helper()
	b := new(Buffer)
	old := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(b, nil)))
	tb.Cleanup(func() { slog.SetDefault(old) })
	return b
}

// Buffer is a bytes.Buffer for several goroutines.
type Buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write implements io.Writer.
func (b *Buffer) Write(p []byte) (int, error) { b.mu.Lock(); defer b.mu.Unlock(); return b.b.Write(p) }

// String returns the text so far.
func (b *Buffer) String() string { b.mu.Lock(); defer b.mu.Unlock(); return b.b.String() }
