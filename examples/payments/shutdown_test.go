package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/httplock"
	"github.com/interlock-go/interlock/internal/redistest"
)

// plainBank counts the payments of each key, and knows nothing of idempotency.
type plainBank struct {
	mu   sync.Mutex
	paid map[string]int
}

func (b *plainBank) pay(key string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.paid[key]++
}

func (b *plainBank) times(key string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.paid[key]
}

// instanceLease is that of an instance, for their locks and their records.
const instanceLease = 5 * time.Second

// instance is one process of a service behind a http.TimeoutHandler.
type instance struct {
	srv    *httptest.Server
	engine *idempotency.Engine
	locker *core.Locker
	store  *redisstore.Store
}

func startInstance(t *testing.T, rdb *redis.Client, limit time.Duration, pay func(key string)) *instance {
	t.Helper()
	store, err := redisstore.New(rdb, redisstore.Logger(slog.New(slog.DiscardHandler)))
	if err != nil {
		t.Fatal(err)
	}
	locker, err := core.New(store, core.Watchdog(instanceLease))
	if err != nil {
		t.Fatal(err)
	}
	engine, err := idempotency.New(store, idempotency.Global(), idempotency.Lease(instanceLease),
		idempotency.Under(core.Serialize(locker, "account/{header.Idempotency-Key}")))
	if err != nil {
		t.Fatal(err)
	}
	paying := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		pay(r.Header.Get("Idempotency-Key"))
		w.WriteHeader(http.StatusCreated)
	})
	srv := httptest.NewServer(http.TimeoutHandler(httplock.Idempotent(engine)(paying), limit, "too slow"))
	t.Cleanup(srv.Close)
	return &instance{srv, engine, locker, store}
}

// post returns the status, and whether the answer was replayed.
func (i *instance) post(t *testing.T, key string) (status int, replayed bool) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, i.srv.URL, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set(idempotency.KeyHeader, key)
	resp, err := i.srv.Client().Do(r)
	if err != nil {
		t.Error(err)
		return 0, false
	}
	_ = resp.Body.Close()
	return resp.StatusCode, resp.Header.Get(idempotency.ReplayedHeader) == "true"
}

// The order is that of docs/operations.md. The handlers go on after the server has
// ended, since their clients have been answered by the time limit.
func TestAShutdownUnderLoadPaysOnceAndLosesNoAnswer(t *testing.T) {
	for name, drained := range map[string]bool{"as documented": true, "without Engine.Close": false} {
		t.Run(name, func(t *testing.T) {
			server := redistest.Start(t)
			bank := &plainBank{paid: make(map[string]int)}
			const payments = 20
			inside, proceed := make(chan struct{}, payments), make(chan struct{})
			var handlers sync.WaitGroup
			handlers.Add(payments)
			var began sync.Map // keys
			old := startInstance(t, server.Client(t), 4*time.Second, func(key string) {
				defer handlers.Done()
				began.Store(key, true)
				inside <- struct{}{}
				<-proceed
				bank.pay(key)
			})
			var clients sync.WaitGroup
			for n := range payments {
				clients.Go(func() {
					key := fmt.Sprint("key-", n)
					for t.Context().Err() == nil {
						old.post(t, key)
						if _, ok := began.Load(key); ok {
							return // else the store was too slow for its claim or its lock
						}
					}
				})
			}
			for range payments {
				<-inside
			}
			clients.Wait() // each has its 503
			if err := old.srv.Config.Shutdown(t.Context()); err != nil {
				t.Error(err)
			}
			if drained {
				time.AfterFunc(100*time.Millisecond, func() { close(proceed) })
				if err := old.engine.Close(t.Context()); err != nil {
					t.Error(err)
				}
			}
			patience := 100 * time.Millisecond // with locks that are held
			if drained {
				patience = 20 * time.Second
			}
			bound, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			if err := old.locker.Close(bound); err != nil && drained {
				t.Error(err)
			}
			if err := old.store.Close(); err != nil {
				t.Error(err)
			}
			if !drained {
				close(proceed)
			}
			handlers.Wait()

			next := startInstance(t, server.Client(t), time.Minute, bank.pay)
			twice := 0
			for n := range payments {
				key := fmt.Sprint("key-", n)
				redistest.Eventually(t, 20*time.Second, func(context.Context) error {
					status, replayed := next.post(t, key)
					if status != http.StatusCreated {
						return fmt.Errorf("%s: %d", key, status)
					}
					if drained && !replayed {
						return errors.New("the answer was lost")
					}
					return nil
				})
				if bank.times(key) != 1 {
					twice++
				}
			}
			if drained && twice > 0 || !drained && twice == 0 {
				t.Errorf("%d of %d payments were made twice", twice, payments)
			}
			stop, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			defer cancel()
			if err := errors.Join(next.engine.Close(stop), next.locker.Close(stop), next.store.Close()); err != nil {
				t.Error(err)
			}
			// Without, it is a process that ended: here its goroutines have to.
			ended, now := context.WithCancel(context.Background())
			now()
			_ = old.engine.Close(ended)
		})
	}
}
