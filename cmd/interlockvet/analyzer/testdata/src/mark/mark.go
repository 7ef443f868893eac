// Package mark has effects before MarkEffect, and after its error.
package mark

import (
	"context"
	"database/sql"
	"log"
	"net/http"

	"github.com/interlock-go/interlock/core/idempotency"
)

type bank struct {
	client *http.Client
	db     *sql.DB
}

func (b *bank) transfer(context.Context, string) error { return nil }

// Fault 11: the request leaves before the mark.
func (b *bank) early(w http.ResponseWriter, r *http.Request) {
	req, err := http.NewRequestWithContext(r.Context(), http.MethodPost, "https://bank.example/transfers", nil)
	if err != nil {
		return
	}
	resp, err := b.client.Do(req) // want `mark: a request comes before MarkEffect: .*; call MarkEffect first`
	if err != nil {
		return
	}
	_ = resp.Body.Close()
	if err := idempotency.MarkEffect(r.Context()); err != nil {
		http.Error(w, "try again", http.StatusServiceUnavailable)
		return
	}
}

func (b *bank) row(ctx context.Context) error {
	if _, err := b.db.ExecContext(ctx, "UPDATE account SET balance = balance - 1"); err != nil { // want `mark: a statement that writes comes before MarkEffect`
		return err
	}
	return idempotency.MarkEffect(ctx)
}

// Fault 12: the error of MarkEffect is dropped.
func (b *bank) dropped(ctx context.Context) error {
	_ = idempotency.MarkEffect(ctx) // want `mark: the error of MarkEffect says that another attempt may be under way; return it, and answer 503`
	return b.transfer(ctx, "42")
}

func (b *bank) statement(ctx context.Context) error {
	idempotency.MarkEffect(ctx) // want `mark: the error of MarkEffect`
	return b.transfer(ctx, "42")
}

// Fault 13: the effect happens after an error of MarkEffect.
func (b *bank) goesOn(ctx context.Context) error {
	if err := idempotency.MarkEffect(ctx); err != nil { // want `mark: after an error of MarkEffect another attempt may be under way, and the effect must not happen; return`
		log.Print(err)
	}
	return b.transfer(ctx, "42")
}

func (b *bank) good(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://bank.example/rates", nil)
	if err != nil {
		return err
	}
	resp, err := b.client.Do(req) // it reads
	if err != nil {
		return err
	}
	_ = resp.Body.Close()
	if _, err := b.db.ExecContext(ctx, "INSERT INTO seen (id) VALUES ($1) ON CONFLICT DO NOTHING", 1); err != nil {
		return err // twice is once
	}
	if err := idempotency.MarkEffect(ctx); err != nil {
		return err
	}
	_, err = b.db.ExecContext(ctx, "UPDATE account SET balance = balance - 1")
	return err
}

func (b *bank) branches(ctx context.Context, dry bool) error {
	if dry {
		_, err := b.db.ExecContext(ctx, "INSERT INTO rehearsal DEFAULT VALUES")
		return err
	}
	for range 2 {
		if err := idempotency.MarkEffect(ctx); err != nil {
			log.Fatal(err)
		}
		if _, err := b.db.ExecContext(ctx, "UPDATE account SET balance = balance - 1"); err != nil {
			return err
		}
	}
	return nil
}

func (b *bank) deduplicated(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://bank.example/transfers", nil)
	if err != nil {
		return err
	}
	req.Header.Set("Idempotency-Key", idempotency.DownstreamKey(ctx))
	resp, err := b.client.Do(req)
	if err != nil {
		return err
	}
	_ = resp.Body.Close()
	return idempotency.MarkEffect(ctx)
}

func (b *bank) chain(ctx context.Context, w http.ResponseWriter) {
	if err := idempotency.MarkEffect(ctx); err != nil {
		http.Error(w, "try again", http.StatusServiceUnavailable)
	} else {
		_ = b.transfer(ctx, "42")
	}
	log.Print("done")
}
