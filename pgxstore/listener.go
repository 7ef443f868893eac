package pgxstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-go/interlock/core/driver"
)

const (
	// connectWait bounds the making of a connection, statementWait a statement, and
	// acquireWait how long the pool may take to have a connection free.
	connectWait   = 5 * time.Second
	statementWait = 2 * time.Second
	acquireWait   = time.Second
	// proofWait bounds the wait of the listener for its own message.
	proofWait = 2 * time.Second
	// closeWait bounds the end of a connection.
	closeWait = time.Second

	// minPause and maxPause are the first and the longest pause before the next connection,
	// deafPause the pause after a connection that receives nothing.
	minPause  = 100 * time.Millisecond
	maxPause  = 10 * time.Second
	deafPause = time.Minute

	// maxChannel is the length of an identifier of PostgreSQL, in bytes.
	maxChannel = 63
)

// Listener receives the notifications of a database (LISTEN). Each call of
// [Listener.Listen] has one connection, made as the pool makes its own, but outside of
// the pool. A Listener is safe for concurrent use.
//
// PgBouncer in transaction mode accepts LISTEN, and delivers no notification. There the
// pool of a Listener has to connect to PostgreSQL itself, which may be another pool than
// the service's, with one connection. Otherwise the Listener says so in the log, once,
// and looks again each minute.
type Listener struct {
	pool  *pgxpool.Pool
	log   lines
	check time.Duration
	said  sync.Once // that LISTEN does not work here
}

// A ListenerOption changes a [Listener].
type ListenerOption func(*listenerSettings)

type listenerSettings struct {
	Listener *Listener
	err      error
}

// Logger sets the logger for warnings. Default, and if log is nil: [slog.Default].
func Logger(log *slog.Logger) ListenerOption {
	return func(s *listenerSettings) {
		if log != nil {
			s.Listener.log.to = log
		}
	}
}

// CheckEvery sets after how long without a notification the listener sends itself one,
// to see whether the connection is alive. So long, and up to 12 s more, notifications can
// be lost on a connection that is dead without a sign. d is above 0. Default: 30 s.
func CheckEvery(d time.Duration) ListenerOption {
	return func(s *listenerSettings) {
		if d <= 0 {
			s.err = errors.Join(s.err, fmt.Errorf("%w: CheckEvery(%v): must be above 0", driver.ErrConfig, d))
			return
		}
		s.Listener.check = d
	}
}

// NewListener makes a Listener. It connects to nothing. The pool stays the caller's, and
// must be open for as long as [Listener.Listen] runs. The Listener takes a connection of
// it for its own messages, for the time of one statement. An error matches
// [driver.ErrConfig].
func NewListener(pool *pgxpool.Pool, opts ...ListenerOption) (*Listener, error) {
	if pool == nil {
		return nil, fmt.Errorf("%w: NewListener(nil): a pool of connections is needed", driver.ErrConfig)
	}
	s := listenerSettings{Listener: &Listener{pool: pool, log: lines{to: slog.Default()}, check: 30 * time.Second}}
	for _, opt := range opts {
		opt(&s)
	}
	if s.err != nil {
		return nil, s.err
	}
	return s.Listener, nil
}

// Listen calls hear with the payload of each notification on the channel, until ctx
// ends. It then returns the cause of ctx. It connects again when the connection breaks,
// with pauses of up to 10 s.
//
// It calls state(true) when it has begun to receive, also after each reconnect:
// earlier notifications may have been lost, and the caller looks for their changes.
// It calls state(false) when it finds that it receives nothing: the caller then
// asks from time to time. Until the first call of state the caller does the same.
// Both functions are called one at a time, from the goroutine of Listen, and have
// to return soon.
//
// The channel has 1 to 63 bytes, or Listen returns [driver.ErrConfig]. Its case counts.
func (l *Listener) Listen(ctx context.Context, channel string, hear func(payload string), state func(listening bool)) error {
	if n := len(channel); n == 0 || n > maxChannel || strings.ContainsRune(channel, 0) {
		return fmt.Errorf("%w: Listen on channel %.80q: 1 to %d bytes, none of them zero", driver.ErrConfig, channel, maxChannel)
	}
	s := &subscription{Listener: l, channel: channel, hear: hear, state: state}
	for pause := minPause; ; {
		began := time.Now()
		err := s.run(ctx)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if s.listening && time.Since(began) > maxPause { // it worked for a while
			pause = minPause
		}
		s.failed(err)
		nap := pause/2 + rand.N(pause/2)
		if s.deaf > 1 {
			nap = deafPause
		}
		pause = min(2*pause, maxPause)
		timer := time.NewTimer(nap)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		}
	}
}

// connect makes a connection as the pool does.
func (l *Listener) connect(ctx context.Context) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, connectWait)
	defer cancel()
	config := l.pool.Config() // a copy
	if config.BeforeConnect != nil {
		if err := config.BeforeConnect(ctx, config.ConnConfig); err != nil {
			return nil, err
		}
	}
	// The application's handler is for the application's connections.
	config.ConnConfig.OnNotification = nil
	// A context that ends a wait must leave the connection as it is.
	config.ConnConfig.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.DeadlineContextWatcherHandler{Conn: conn.Conn()}
	}
	return pgx.ConnectConfig(ctx, config.ConnConfig)
}

// disconnect closes a connection, also when ctx has ended.
func disconnect(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeWait)
	defer cancel()
	_ = conn.Close(ctx) // there is nothing to do about an error
	select {
	case <-conn.PgConn().CleanupDone(): // of a connection that broke
	case <-ctx.Done():
	}
}

// execute runs statements without arguments, which is one round trip and prepares
// nothing.
func execute(ctx context.Context, conn *pgx.Conn, sql string) error {
	ctx, cancel := context.WithTimeout(ctx, statementWait)
	defer cancel()
	_, err := conn.PgConn().Exec(ctx, sql).ReadAll()
	return err
}

// notify sends a notification over another connection than the listening one: from
// the pool, or a new one if the pool has none that works.
func (l *Listener) notify(ctx context.Context, sql string) error {
	pooled := l.notifyPooled(ctx, sql)
	if pooled == nil || ctx.Err() != nil {
		return pooled
	}
	conn, err := l.connect(ctx)
	if err != nil {
		return errors.Join(pooled, err)
	}
	defer disconnect(ctx, conn)
	return execute(ctx, conn, sql)
}

func (l *Listener) notifyPooled(ctx context.Context, sql string) error {
	acquiring, cancel := context.WithTimeout(ctx, acquireWait)
	defer cancel()
	conn, err := l.pool.Acquire(acquiring)
	if err != nil {
		return err
	}
	defer conn.Release()
	return execute(ctx, conn.Conn(), sql)
}
