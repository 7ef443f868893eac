package main

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/alicebob/miniredis/v2"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/pgstore"
	"github.com/interlock-go/interlock/examples/payments/bank"
)

const (
	// redisPatience is for the answer to one try; go-redis makes four tries.
	redisPatience = 2 * time.Second
	// embeddedPatience is the same for a server in this process. Such a server loses no answer.
	// It is late when the machine is busy, and a second try makes it later.
	embeddedPatience = 10 * time.Second
	pingTimeout      = 5 * time.Second
	// maxConns bounds the connections of one process to PostgreSQL: several share a
	// server, and many servers allow 100.
	maxConns = 20
)

// embed starts a Redis-compatible server inside this process, unless the configuration names
// servers.
func (cfg *config) embed() (stop func() error, err error) {
	if len(cfg.redis) > 0 {
		cfg.patience = cmp.Or(cfg.patience, redisPatience)
		return func() error { return nil }, nil
	}
	embedded := miniredis.NewMiniRedis()
	if err := embedded.Start(); err != nil {
		return nil, fmt.Errorf("embedded server: %w", err)
	}
	// Without this call no key expires, not even the lock of a dead process.
	embedded.ClockTTL(true)
	cfg.redis, cfg.patience = []string{embedded.Addr()}, embeddedPatience
	return func() error { embedded.Close(); return nil }, nil
}

// connect makes a client of the configured Redis. commands, unless nil, counts the commands
// sent.
func (s *service) connect(ctx context.Context, cfg config, commands *commandCounter) error {
	redis.SetLogger(redisLogger{s.log})
	// A handler's commands must not outlast its lease: they end with its
	// context, and in a fraction of the lease even if Redis hangs.
	o := &redis.UniversalOptions{Addrs: cfg.redis, ContextTimeoutEnabled: true, ReadTimeout: cfg.patience}
	if commands != nil {
		o.Dialer = commands.dial
	}
	s.rdb = redis.NewUniversalClient(o)
	s.connection = append(s.connection, s.rdb.Close)

	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	if err := s.rdb.Ping(ctx).Err(); err != nil {
		return fmt.Errorf("no Redis at %v: %w", cfg.redis, err)
	}
	return nil
}

// redisLogger passes the messages of go-redis (retried dials, closed connections) to a
// structured log, as details.
type redisLogger struct{ log *slog.Logger }

// Printf implements go-redis's logging interface.
func (l redisLogger) Printf(ctx context.Context, format string, v ...any) {
	l.log.DebugContext(ctx, fmt.Sprintf(format, v...))
}

// openPostgres connects the bank with a database, makes the tables, and returns the store
// of the records. The rows of a payment and its record are then committed in one
// transaction. The locks stay in Redis.
func (s *service) openPostgres(ctx context.Context, url string, work func(context.Context) error) (*pgstore.Store, error) {
	db, err := sql.Open("pgx", url)
	if err != nil {
		return nil, err
	}
	s.connection = append(s.connection, db.Close)
	db.SetMaxOpenConns(maxConns)
	db.SetMaxIdleConns(maxConns)
	store, err := pgstore.New(db, pgstore.Logger(s.log))
	if err != nil {
		return nil, err
	}
	s.connection = append(s.connection, store.Close)

	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	if err := errors.Join(bank.Migrate(ctx, db), store.Migrate(ctx)); err != nil {
		return nil, fmt.Errorf("-postgres: %w", err)
	}
	s.bank = bank.NewSQL(db, work, transaction)
	return store, nil
}

// transaction returns the transaction of a payment. The engine commits it together with
// the answer, or rolls it back.
func transaction(ctx context.Context) (*sql.Tx, error) {
	tx, err := pgstore.Tx(ctx)
	switch {
	case errors.Is(err, core.ErrLost): // noticed here first, before ctx has ended
		return nil, fmt.Errorf("%w: %w", bank.ErrStaleToken, err)
	case err != nil:
		return nil, err
	}
	return tx.SQL(), nil
}

// noMark is for payments in a transaction. Until its commit nothing has changed, and so
// there is nothing to mark.
func noMark(context.Context) error { return nil }
