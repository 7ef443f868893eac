// Package context has work with a context that does not end with the lock.
package context

import (
	"context"
	"database/sql"
	"log/slog"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/once"
	"github.com/interlock-go/interlock/ginlock"
	"github.com/interlock-go/interlock/httplock"
)

func settle(context.Context) error     { return nil }
func rollback(context.Context) error   { return nil }
func audit(context.Context, int) error { return nil }

type service struct {
	locker *core.Locker
	engine *idempotency.Engine
	db     *sql.DB
}

// Fault 1: the function under the lock makes a context.
func (s *service) background(ctx context.Context) error {
	return s.locker.Do(ctx, "account/42", func(ctx context.Context) error {
		return settle(context.Background()) // want `context: context.Background\(\) in the function that Do calls goes on when its lock or claim is lost; pass the function's own context ctx`
	})
}

// Fault 2: the function under the lock uses the context around it.
func (s *service) outer(ctx context.Context) error {
	return s.locker.Do(ctx, "account/42", func(context.Context) error {
		return settle(ctx) // want `context: ctx is the context outside of the function that Do calls: .*; name the function's context parameter and pass it`
	})
}

func (s *service) leader(ctx context.Context) error {
	return core.Lead(ctx, s.locker, "leader", func(lead context.Context) error {
		bounded, cancel := context.WithTimeout(ctx, time.Second) // want `context: ctx is the context outside of the function that Lead calls`
		defer cancel()
		return settle(bounded)
	})
}

func (s *service) monthly(ctx context.Context) error {
	return once.Per(ctx, s.engine, "monthly", 30*24*time.Hour, s.month)
}

func (s *service) month(ctx context.Context) error {
	_, err := s.db.ExecContext(context.TODO(), "DELETE FROM old") // want `context: context.TODO\(\) in the function that Per calls`
	return err
}

// Its own context, a clean-up that must not end with the lock, and work that goes on after it, are good.
func (s *service) good(ctx context.Context) error {
	return s.locker.Do(ctx, "account/42", func(ctx context.Context) error {
		tx, err := s.db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = rollback(context.Background()) }()
		bounded, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if err := settle(bounded); err != nil {
			undo, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			_ = rollback(undo)
			return err
		}
		slog.InfoContext(context.Background(), "settled")
		go func() { _ = audit(context.Background(), 1) }()
		_ = audit(context.WithoutCancel(ctx), 1)
		return core.Commit(ctx, tx.Commit)
	})
}

// Fault 3: the context of the lease is not used.
func (s *service) ignored(ctx context.Context) error {
	lease, err := s.locker.Lock(ctx, "account/42")
	if err != nil {
		_ = audit(ctx, 1)
		return err
	}
	defer lease.Release(ctx)
	return settle(ctx) // want `context: ctx does not end when the lock is lost; work under the lock with lease.Context\(\)`
}

func (s *service) used(ctx context.Context) error {
	lease, err := s.locker.Lock(ctx, "account/42")
	if err != nil {
		return err
	}
	defer lease.Release(ctx)
	if err := settle(lease.Context()); err != nil {
		return err
	}
	return audit(ctx, 1)
}

func (s *service) replaced(ctx context.Context) error {
	lease, err := s.locker.TryLock(ctx, "account/42")
	switch {
	case err != nil:
		return audit(ctx, 1)
	default:
	}
	err = settle(context.WithoutCancel(ctx))
	_ = lease.Release(ctx)
	_ = audit(ctx, 2)
	return err
}

func (s *service) fenced(ctx context.Context) error {
	lease, err := s.locker.Lock(ctx, "account/42")
	if err != nil {
		return err
	}
	defer lease.Release(ctx)
	_, err = s.db.ExecContext(ctx, "UPDATE account SET balance = 0 WHERE fence <= $1", lease.Token())
	return err
}

// Fault 4: a handler gives Interlock a context that is not the request's.
func (s *service) handler(w http.ResponseWriter, r *http.Request) {
	lease, err := s.locker.Lock(context.Background(), "account/42") // want `context: context.Background\(\) is not the context of the caller: .*; pass r.Context\(\)`
	if err != nil {
		return
	}
	defer lease.Release(context.Background())
	_ = settle(lease.Context())
	go func() { _ = s.locker.Do(context.Background(), "report", settle) }() // its own work
}

func main() {
	var s service
	_ = s.locker.Do(context.Background(), "migration", settle) // no caller has a context
}

// Fault 5: gin's context.
func (s *service) gin(c *gin.Context) {
	_ = s.locker.Do(c, "account/42", settle) // want `context: a \*gin.Context hides the lock of the request and does not end; pass c.Request.Context\(\) to Do`
	_ = s.locker.Do(c.Request.Context(), "account/42", settle)
}

func (s *service) routes(r *gin.Engine, mux *http.ServeMux) {
	debit := core.Serialize(s.locker, "account/{id:int}")
	r.POST("/accounts/:id/debit", ginlock.Guard(debit), s.ginDebit)
	r.GET("/accounts/:id", s.ginShow)
	guard := httplock.Guard(debit)
	mux.Handle("POST /accounts/{id}/debit", guard(http.HandlerFunc(s.debit)))
	mux.HandleFunc("GET /accounts/{id}", s.show)
}

// Fault 6: work of a guarded handler with another context than the request's.
func (s *service) debit(_ http.ResponseWriter, r *http.Request) {
	_ = settle(r.Context())
	_ = settle(context.Background()) // want `context: context.Background\(\) in a handler under a lock or a claim goes on when that is lost; pass r.Context\(\)`
}

func (s *service) ginDebit(c *gin.Context) {
	_ = settle(c) // want `context: a \*gin.Context does not end when the lock or claim is lost; pass c.Request.Context\(\)`
	_ = settle(c.Request.Context())
}

func (s *service) show(http.ResponseWriter, *http.Request) { _ = settle(context.Background()) }
func (s *service) ginShow(c *gin.Context)                  { _ = settle(c) }
