// Package closing has stores that are closed before what uses them.
package closing

import (
	"context"
	"net/http"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/core/redisstore"
)

// Fault 21: the deferred calls run from the last to the first.
func deferred(ctx context.Context, rdb *redis.Client) error {
	store, err := redisstore.New(rdb)
	if err != nil {
		return err
	}
	locker, err := core.New(store)
	if err != nil {
		return err
	}
	defer locker.Close(ctx) // want `close: store.Close runs before locker.Close; close in the order server, engine, locker, store, client of the store: the last defer runs first`
	defer store.Close()
	return nil
}

// Fault 22: the client is closed first.
func client(ctx context.Context, srv *http.Server) error {
	rdb := redis.NewClient(&redis.Options{})
	store, err := redisstore.New(rdb)
	if err != nil {
		return err
	}
	locker, err := core.New(store)
	if err != nil {
		return err
	}
	_ = srv.Shutdown(ctx)
	_ = rdb.Close() // want `close: rdb.Close runs before locker.Close`
	_ = locker.Close(ctx)
	return store.Close()
}

type service struct {
	server *http.Server
	engine *idempotency.Engine
	locker *core.Locker
	store  *redisstore.Store
}

func (s *service) close(ctx context.Context) {
	_ = s.locker.Close(ctx) // want `close: s.locker.Close runs before s.engine.Close`
	_ = s.engine.Close(ctx)
	_ = s.store.Close()
}

func (s *service) good(ctx context.Context) {
	_ = s.server.Shutdown(ctx)
	_ = s.engine.Close(ctx)
	_ = s.locker.Close(ctx)
	_ = s.store.Close()
}

func ordered(ctx context.Context) error {
	rdb, cache := redis.NewClient(&redis.Options{}), redis.NewClient(&redis.Options{})
	defer rdb.Close()
	store, err := redisstore.New(rdb)
	if err != nil {
		_ = rdb.Close()
		return err
	}
	defer store.Close()
	locker, err := core.New(store)
	if err != nil {
		_ = store.Close()
		return err
	}
	defer func() {
		_ = locker.Close(ctx)
		_ = store.Close()
	}()
	return cache.Close() // of other values
}

func two(ctx context.Context) error {
	first, second := memstore.New(), redisStore()
	old, err := core.New(first)
	if err != nil {
		return err
	}
	defer old.Close(ctx)
	locker, err := core.New(second)
	if err != nil {
		return err
	}
	_ = locker.Close(ctx)
	return second.Close()
}

func redisStore() *redisstore.Store { return nil }
