//go:build integration && unix

package pgx_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-go/interlock/pgxstore"
	"github.com/interlock-go/interlock/trust/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// patience bounds how long a test waits for what must happen.
const patience = 30 * time.Second

// newPool makes a pool of connections.
func newPool(t *testing.T, dsn string, edits ...func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	for _, edit := range edits {
		edit(config)
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// lines collects what is logged.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) count(part string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), part)
}

// heard is one call of a listener.
type heard struct {
	payload string
	state   bool // payload is none, but listening
	on      bool
}

// ears is what a listener has told.
type ears struct {
	*testing.T
	log    lines
	calls  chan heard
	cancel context.CancelFunc
	ended  chan error
}

// errOver is why the contexts of listeners end.
var errOver = errors.New("the test is over")

// listen listens on a channel until the test ends.
func listen(t *testing.T, pool *pgxpool.Pool, channel string, opts ...pgxstore.ListenerOption) *ears {
	t.Helper()
	e := &ears{T: t, calls: make(chan heard, 1000), ended: make(chan error, 1)}
	l, err := pgxstore.NewListener(pool, append([]pgxstore.ListenerOption{
		pgxstore.Logger(slog.New(slog.NewTextHandler(&e.log, nil))),
	}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	e.cancel = func() { cancel(errOver) }
	go func() {
		e.ended <- l.Listen(ctx, channel,
			func(payload string) { e.calls <- heard{payload: payload} },
			func(on bool) { e.calls <- heard{state: true, on: on} })
	}()
	t.Cleanup(func() {
		e.cancel()
		select {
		case err := <-e.ended:
			if !errors.Is(err, errOver) {
				t.Errorf("Listen returned %v; want the cause of its context", err)
			}
		case <-time.After(patience):
			t.Error("Listen goes on although its context has ended")
		}
	})
	return e
}

// next waits for the next call.
func (e *ears) next() heard {
	e.Helper()
	select {
	case call := <-e.calls:
		return call
	case <-time.After(patience):
		e.Fatal("the listener tells nothing")
		return heard{}
	}
}

// hears waits for calls, which must be these.
func (e *ears) hears(want ...heard) {
	e.Helper()
	for _, call := range want {
		if got := e.next(); got != call {
			e.Fatalf("the listener tells %+v; want %+v", got, call)
		}
	}
}

// nothing checks that there was no call.
func (e *ears) nothing(long time.Duration) {
	e.Helper()
	select {
	case call := <-e.calls:
		e.Fatalf("the listener tells %+v; want nothing", call)
	case <-time.After(long):
	}
}

var listening, polling = heard{state: true, on: true}, heard{state: true}

// exec runs a statement.
func exec(t *testing.T, pool *pgxpool.Pool, sql string, args ...any) int64 {
	t.Helper()
	tag, err := pool.Exec(t.Context(), sql, args...)
	if err != nil {
		t.Fatal(err)
	}
	return tag.RowsAffected()
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, met func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !met(); {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", patience, what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}
