package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
)

// consume works on messages until ctx ends.
func (s *service) consume(ctx context.Context) error {
	var workers sync.WaitGroup
	for range 8 {
		workers.Go(func() {
			for ctx.Err() == nil {
				err := s.next(ctx)
				if err == nil {
					continue
				}
				if !errors.Is(err, pgx.ErrNoRows) && ctx.Err() == nil {
					log.Print(err) // the message is delivered again
				}
				select {
				case <-time.After(50 * time.Millisecond):
				case <-ctx.Done():
				}
			}
		})
	}
	workers.Wait()
	return nil
}

// next works on one message that is due.
func (s *service) next(ctx context.Context) error {
	var id int64
	var m message
	if err := s.pool.QueryRow(ctx, `UPDATE message SET due = now() + $1 WHERE id = (SELECT id FROM message
		WHERE due <= now() ORDER BY due LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING id, body`, *lease).Scan(&id, &m); err != nil {
		return err
	}
	switch err := s.finish(context.WithoutCancel(ctx), m); {
	case errors.Is(err, idempotency.ErrTicketFinished), errors.Is(err, idempotency.ErrTicketRanOut):
		// Done before; or the client's next try has started again, and sends another message.
	case err != nil:
		return err
	}
	at("finished")
	_, err := s.pool.Exec(ctx, "DELETE FROM message WHERE id = $1", id)
	return err
}

// finish takes over the request and the lock, credits the payee and stores the final answer. The
// request comes first: its ticket tells at once whether another delivery of the message has done the
// work, or is at it. If a former delivery has used the ticket of the lock, finish waits for the lock
// in turn, for a second: the lock may be kept for another message, which needs a free worker.
func (s *service) finish(ctx context.Context, m message) error {
	return s.payments.TakeOver(ctx, m.Claim, func(ctx context.Context) (answer endpoint.Response, err error) {
		lease, err := s.locker.TakeOver(ctx, m.Lock, core.OrLock(), core.Wait(time.Second))
		if err != nil {
			return answer, err
		}
		defer func() { _ = lease.Release(ctx) }()
		at("taken over")
		if _, err := s.ledger.Credit(lease.Context(), m.Payment); err != nil {
			return answer, err
		}
		at("credited")
		return endpoint.Response{Status: http.StatusCreated, Body: fmt.Appendf(nil, "payment %s\n", m.Payment.GetId())}, nil
	})
}
