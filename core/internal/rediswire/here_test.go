//go:build integration

package rediswire

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/observe"
	"github.com/interlock-go/interlock/internal/redistest"
)

// writes is a Dialer that sees which goroutine writes.
type writes struct {
	deaf      bool // its connections ignore deadlines, as those through SSH do
	here      atomic.Int64
	elsewhere atomic.Int64
}

func (w *writes) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	cn, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &writesConn{Conn: cn, writes: w}, nil
}

type writesConn struct {
	net.Conn
	writes *writes
}

func (c *writesConn) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte("evalsha")) {
		stack := make([]byte, 16<<10)
		if bytes.Contains(stack[:runtime.Stack(stack, false)], []byte("sendHere")) {
			c.writes.here.Add(1)
		} else {
			c.writes.elsewhere.Add(1)
		}
	}
	return c.Conn.Write(p)
}

func (c *writesConn) SetDeadline(t time.Time) error {
	if c.writes.deaf {
		return nil
	}
	return c.Conn.SetDeadline(t)
}
func (c *writesConn) SetReadDeadline(t time.Time) error  { return c.SetDeadline(t) }
func (c *writesConn) SetWriteDeadline(t time.Time) error { return c.SetDeadline(t) }

// take takes a lock and releases it.
func take(t *testing.T, s *Store, key string) {
	t.Helper()
	ask := driver.AcquireRequest{Key: key, Owner: "o", TTL: time.Minute, Deadline: time.Now().Add(time.Minute)}
	if rep, err := s.Acquire(t.Context(), ask); err != nil || !rep.Granted {
		t.Fatalf("the answer is %+v, %v; want a grant", rep, err)
	}
	if _, err := s.Release(t.Context(), driver.ReleaseRequest{Key: key, Owner: "o", TTL: time.Minute}); err != nil {
		t.Fatal(err)
	}
}

// rest waits until no pipeline of a store on one server is under way: the caller of a
// request can have its answer before the goroutine that sent it is done.
func rest(t *testing.T, s *Store) {
	t.Helper()
	q := s.requests.direct
	redistest.Eventually(t, time.Minute, func(context.Context) error {
		q.mu.Lock()
		defer q.mu.Unlock()
		if q.busy > 0 {
			return errors.New("a goroutine still has a pipeline")
		}
		return nil
	})
}

func TestALoneCallerSendsByItself(t *testing.T) {
	t.Parallel()
	w := &writes{}
	s := common(t, func(o *redis.Options) { o.Dialer = w.dial })
	sendsByItself(t, s, w)
}

func sendsByItself(t *testing.T, s *Store, w *writes) {
	t.Helper()
	for i := range 20 { // of each server
		take(t, s, fmt.Sprint("key", i))
	}
	w.here.Store(0)
	w.elsewhere.Store(0)
	for i := range 20 {
		take(t, s, fmt.Sprint("key", i))
	}
	if here, elsewhere := w.here.Load(), w.elsewhere.Load(); here != 40 || elsewhere != 0 {
		t.Errorf("%d requests were sent by their callers, %d by other goroutines", here, elsewhere)
	}
}

// Callers that had their replies together often ask together again. If the first of them sent its
// request by itself, the others would wait for its reply.
func TestACallerDoesNotLeaveAloneAfterABatchOfSeveral(t *testing.T) {
	t.Parallel()
	w := &writes{}
	s := common(t, func(o *redis.Options) { o.Dialer = w.dial })
	acquire := func(key string) {
		t.Helper()
		rep, err := s.Acquire(t.Context(), driver.AcquireRequest{Key: key, Owner: "o", TTL: time.Minute})
		if err != nil || !rep.Granted {
			t.Fatalf("the answer is %+v, %v; want a grant", rep, err)
		}
		rest(t, s)
	}
	acquire("k")
	q, done := s.requests.direct, make(chan *Request, 2)
	lock, owner, look := s.names.lock("k"), "o", int64(0)
	for range 2 {
		r := new(Request).Make(s, renewScript, lock, make([]any, callArgs+3)).Keys(&lock).Args(&owner, &look)
		r.Detach(func() { done <- r })
		r.prepare()
		q.add(r)
	}
	q.mu.Lock()
	q.dispatch()
	q.mu.Unlock()
	for range 2 {
		if r := outcome(t, done); r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	rest(t, s)
	w.here.Store(0)
	w.elsewhere.Store(0)
	acquire("first")
	if here, elsewhere := w.here.Load(), w.elsewhere.Load(); here != 0 || elsewhere != 1 {
		t.Errorf("after two requests in a batch, %d were sent by their callers and %d by a goroutine; want 0 and 1", here, elsewhere)
	}
	acquire("second")
	if here := w.here.Load(); here != 1 {
		t.Errorf("after a request that came alone, %d were sent by their callers, want 1", here)
	}
}

// The answer of an idempotent request is stored together with the release of its lock: two requests
// of one caller, after which no other caller asks.
func TestACallerSendsByItselfAfterARequestWithARelease(t *testing.T) {
	t.Parallel()
	w := &writes{}
	s := common(t, func(o *redis.Options) { o.Dialer = w.dial })
	ask := driver.AcquireRequest{Key: "k", Owner: "o", TTL: time.Minute}
	for range 2 { // the first opens the connection
		w.here.Store(0)
		w.elsewhere.Store(0)
		if rep, err := s.Acquire(context.Background(), ask); err != nil || !rep.Granted {
			t.Fatalf("the answer is %+v, %v; want a grant", rep, err)
		}
		lock, owner, look := s.names.lock("another"), "o", int64(0)
		r := new(Request).Make(s, renewScript, lock, make([]any, callArgs+3)).Keys(&lock).Args(&owner, &look)
		r.DoWithRelease(context.Background(), func(ctx context.Context) {
			if _, err := s.Release(ctx, driver.ReleaseRequest{Key: "k", Owner: "o", TTL: time.Minute}); err != nil {
				t.Error(err)
			}
		})
		if r.Err != nil {
			t.Fatal(r.Err)
		}
		rest(t, s)
	}
	if here, elsewhere := w.here.Load(), w.elsewhere.Load(); here != 2 || elsewhere != 0 {
		t.Errorf("%d batches were sent by the caller and %d by other goroutines; want 2 and 0", here, elsewhere)
	}
}

func TestAServerThatNeverAnswersHoldsNoCallerPastItsContext(t *testing.T) {
	t.Parallel()
	for _, deaf := range []bool{false, true} {
		for name, end := range map[string]func(ctx context.Context, ask *driver.AcquireRequest) (context.Context, func()){
			"cancelled": func(ctx context.Context, _ *driver.AcquireRequest) (context.Context, func()) {
				return context.WithCancel(ctx)
			},
			"deadline of the context": func(ctx context.Context, _ *driver.AcquireRequest) (context.Context, func()) {
				ctx, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
				t.Cleanup(cancel)
				return ctx, func() {}
			},
			"deadline of the request": func(ctx context.Context, ask *driver.AcquireRequest) (context.Context, func()) {
				ask.Deadline = time.Now().Add(200 * time.Millisecond)
				return ctx, func() {}
			},
		} {
			t.Run(fmt.Sprintf("%s, connections without deadlines: %v", name, deaf), func(t *testing.T) {
				t.Parallel()
				srv, w := redistest.Start(t), &writes{deaf: deaf}
				s := open(t, srv.Client(t, func(o *redis.Options) { o.Dialer = w.dial }), func(set *Config) { set.Timeout = 10 * time.Minute })
				defer func() { _ = s.Close() }()
				take(t, s, "warm")
				rest(t, s)
				srv.Pause(t)
				defer srv.Resume(t)
				late := make(chan driver.Reply, 1)
				ask := driver.AcquireRequest{Key: "k", Owner: "o", TTL: time.Minute, Late: func(rep driver.Reply, _ error) { late <- rep }}
				ctx, cancel := end(t.Context(), &ask)
				defer cancel()
				before := w.here.Load()
				type answer struct {
					rep driver.Reply
					err error
				}
				got := make(chan answer, 1)
				go func() {
					rep, err := s.Acquire(ctx, ask)
					got <- answer{rep, err}
				}()
				redistest.Eventually(t, time.Minute, func(context.Context) error {
					if w.here.Load() == before {
						return errors.New("the caller has not sent the request")
					}
					return nil
				})
				cancel()
				select {
				case a := <-got:
					if a.err == nil {
						t.Errorf("got %+v", a.rep)
					}
					if errors.Is(a.err, driver.ErrPending) {
						a.rep = outcome(t, late)
					}
					if !a.rep.Ambiguous {
						t.Errorf("the outcome counts as known: %+v, %v", a.rep, a.err)
					}
				case <-time.After(time.Minute):
					t.Fatal("the caller is held")
				}
			})
		}
	}
}

// A request that is interrupted because its caller has to leave is not sent again, also if the
// caller is slow to leave. Its outcome is unknown. A call of go-redis ends at the deadline of a
// context; on a busy machine the end of the context is seen a good while later.
func TestAnInterruptedRequestIsNotSentAgainForACallerThatLeaves(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	s := open(t, srv.Client(t), func(*Config) {})
	defer func() { _ = s.Close() }()
	take(t, s, "warm")
	rest(t, s)
	for name, interrupt := range map[string]func(r *Request, leave func()){
		"its context has ended":                  func(_ *Request, leave func()) { leave() },
		"the deadline of its context has passed": func(r *Request, _ func()) { r.leaves = time.Now() },
	} {
		t.Run(name, func(t *testing.T) {
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			late := make(chan error, 1)
			key := "k"
			r := new(Request).Make(s, renewScript, key, make([]any, callArgs)).Keys(&key)
			r.Asks, r.gone, r.tries = true, ctx.Done(), 1
			r.Late = func() { late <- r.Err }
			interrupt(r, leave)
			before := srv.Calls(t)["evalsha"]
			r.tried(io.ErrUnexpectedEOF)
			pauses := make(chan struct{})
			time.AfterFunc(10*firstPause, func() { close(pauses) }) // time to send it
			select {
			case <-r.done:
				t.Fatalf("it has ended with %v, %v", r.Val, r.Err)
			case <-pauses:
			}
			leave()
			if r.Wait(ctx, time.Time{}) {
				t.Fatal("the caller did not leave")
			}
			if err := outcome(t, late); err == nil || !r.Ambiguous {
				t.Errorf("the outcome is %v, unknown: %v", err, r.Ambiguous)
			}
			if n := srv.Calls(t)["evalsha"] - before; n != 0 {
				t.Errorf("the request was sent %d times for a caller that leaves", n)
			}
		})
	}
}

// outcome waits for an outcome that is due.
func outcome[T any](t *testing.T, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(time.Minute):
		t.Fatal("no outcome")
	}
	return v
}

// startling is a Dialer. Its connections panic at the first read after a script was sent,
// as go-redis does where the form of a reply is unknown to it.
type startling struct{ left atomic.Int32 }

func (d *startling) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	cn, err := new(net.Dialer).DialContext(ctx, network, addr)
	return &startlingConn{Conn: cn, dialer: d}, err
}

type startlingConn struct {
	net.Conn
	dialer *startling
	sent   atomic.Bool
}

func (c *startlingConn) Write(p []byte) (int, error) {
	c.sent.Store(bytes.Contains(p, []byte("evalsha")))
	return c.Conn.Write(p)
}

func (c *startlingConn) Read(p []byte) (int, error) {
	if c.sent.Load() && c.dialer.left.Add(-1) >= 0 {
		panic("startled")
	}
	return c.Conn.Read(p)
}

func TestAPanicOfTheClientIsAnUnknownOutcome(t *testing.T) {
	t.Parallel()
	for name, notHere := range map[string]time.Time{
		"sent by the caller":  {},
		"sent by a goroutine": time.Now().Add(time.Hour),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := &startling{}
			acquire := func(s *Store, ask driver.AcquireRequest) (driver.Reply, error) {
				q := s.requests.direct
				q.mu.Lock()
				q.notHere = notHere // the failure before has set it, too
				q.mu.Unlock()
				return s.Acquire(t.Context(), ask)
			}
			s := common(t, func(o *redis.Options) { o.Dialer = d.dial })
			take(t, s, "warm")
			d.left.Store(maxTries)
			rep, err := acquire(s, driver.AcquireRequest{Key: "k", Owner: "o", TTL: time.Minute})
			if err == nil || !rep.Ambiguous || !strings.Contains(observe.RootCause(err).Error(), "startled") {
				t.Fatalf("got %+v, %v", rep, err)
			}
			for i := range 10 { // the next reply is the request's own
				key := fmt.Sprint("key", i)
				d.left.Store(1)
				rep, err := acquire(s, driver.AcquireRequest{Key: key, Owner: "o", TTL: time.Minute})
				if err != nil || !rep.Granted {
					t.Fatalf("with a panic at the first try: %+v, %v", rep, err)
				}
				rep, err = acquire(s, driver.AcquireRequest{Key: key, Owner: "other", TTL: time.Minute})
				if err != nil || rep.Granted || rep.Holder != "o" {
					t.Errorf("another owner got %+v, %v", rep, err)
				}
			}
		})
	}
}
