//go:build long

package changeover

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gofiber/fiber/v3"
	fiberidempotency "github.com/gofiber/fiber/v3/middleware/idempotency"

	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/once"
	"github.com/interlock-go/interlock/core/memstore"
)

// Of docs/moving.md.

// payments makes a payment and returns its receipt.
type payments func(ctx context.Context, order string) (string, error)

func withFiber(app *fiber.App, storage fiber.Storage) {
	app.Use(fiberidempotency.New(fiberidempotency.Config{Storage: storage}))
}

func before(app *fiber.App, pay payments) {
	app.Post("/payments", func(c fiber.Ctx) error {
		receipt, err := pay(c.Context(), string(c.Body()))
		if err != nil {
			return err
		}
		return c.SendString(receipt)
	})
}

func after(app *fiber.App, engine *idempotency.Engine, pay payments) {
	app.Post("/payments", func(c fiber.Ctx) error {
		key := c.Get("X-Idempotency-Key")
		if key == "" {
			return fiber.NewError(fiber.StatusBadRequest, "send X-Idempotency-Key")
		}
		receipt, err := once.Do(c.Context(), engine, "payments/"+key, string(c.Body()), pay, once.Scoped(userOf(c)))
		if err != nil {
			return refused(err)
		}
		return c.SendString(receipt)
	})
}

func refused(err error) error {
	var refusal *once.RefusedError
	switch {
	case errors.Is(err, idempotency.ErrInFlight):
		return fiber.NewError(fiber.StatusConflict, "the first request is being carried out")
	case errors.Is(err, idempotency.ErrKeyReused):
		return fiber.NewError(fiber.StatusUnprocessableEntity, "another request has the key")
	case errors.As(err, &refusal) && refusal.RetryAfter > 0:
		return fiber.NewError(fiber.StatusServiceUnavailable, "try again")
	case errors.As(err, &refusal):
		return fiber.NewError(fiber.StatusConflict, "the outcome is not known")
	}
	return err
}

// userOf is the user of a request, as authentication has found it.
func userOf(c fiber.Ctx) string { return strings.Clone(c.Get("X-User")) }

// sharedStorage is the storage that processes with fiber's middleware share.
type sharedStorage struct {
	fiber.Storage // the middleware uses two methods
	answers       sync.Map
}

func (s *sharedStorage) GetWithContext(_ context.Context, key string) ([]byte, error) {
	answer, _ := s.answers.Load(key)
	bytes, _ := answer.([]byte)
	return bytes, nil
}

func (s *sharedStorage) SetWithContext(_ context.Context, key string, answer []byte, _ time.Duration) error {
	s.answers.Store(key, answer)
	return nil
}

// shop has processes that share a storage, and a store of records.
type shop struct {
	*testing.T
	storage *sharedStorage
	engine  *idempotency.Engine
	made    atomic.Int32
	inside  chan struct{} // if it is set, a payment tells that it has begun
	proceed chan struct{} // and waits
}

func newShop(t *testing.T) *shop {
	t.Helper()
	engine, err := idempotency.New(memstore.New(), idempotency.Global())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := engine.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return &shop{T: t, storage: &sharedStorage{}, engine: engine}
}

func (s *shop) pay(_ context.Context, order string) (string, error) {
	s.made.Add(1)
	if s.inside != nil {
		s.inside <- struct{}{}
		<-s.proceed
	}
	return "receipt for " + order, nil
}

// process is one process of a release.
func (s *shop) process(r release) *fiber.App {
	app := fiber.New()
	if r != ours {
		withFiber(app, s.storage)
	}
	if r == old {
		before(app, s.pay)
	} else {
		after(app, s.engine, s.pay)
	}
	return app
}

const uuid = "8e03978e-40d5-43dd-bc93-6894a57f9324"

// post sends a payment, and returns the status and the body.
func (s *shop) post(app *fiber.App, key, user, order string) (int, string) {
	s.Helper()
	r := httptest.NewRequestWithContext(s.Context(), http.MethodPost, "/payments", strings.NewReader(order))
	r.Header.Set("X-User", user)
	if key != "" {
		r.Header.Set("X-Idempotency-Key", key)
	}
	res, err := app.Test(r, fiber.TestConfig{Timeout: 0})
	if err != nil {
		s.Error(err)
		return 0, ""
	}
	body, err := io.ReadAll(res.Body)
	if err != nil || res.Body.Close() != nil {
		s.Error(err)
	}
	return res.StatusCode, string(body)
}

func (s *shop) wants(app *fiber.App, key, user, order string, status int, body string) {
	s.Helper()
	if gotStatus, got := s.post(app, key, user, order); gotStatus != status || body != "" && got != body {
		s.Errorf("%s pays %q: %d %q; want %d %q", user, order, gotStatus, got, status, body)
	}
}

func (s *shop) wantMade(n int32) {
	s.Helper()
	if got := s.made.Load(); got != n {
		s.Errorf("%d payments were made; want %d", got, n)
	}
}

// The statements of the page about fiber's middleware, and about its replacement.
func TestFiberBeforeAndAfter(t *testing.T) {
	s := newShop(t)
	app := s.process(old)
	s.wants(app, uuid, "ann", "1", 200, "receipt for 1")
	s.wants(app, uuid, "ann", "999", 200, "receipt for 1") // the body is not looked at
	s.wants(app, uuid, "bob", "2", 200, "receipt for 1")   // nor the user
	s.wantMade(1)
	s.wants(app, "", "ann", "3", 200, "receipt for 3") // no key, no check
	s.wantMade(2)

	s = newShop(t)
	app = s.process(ours)
	s.wants(app, uuid, "ann", "1", 200, "receipt for 1")
	s.wants(app, uuid, "ann", "1", 200, "receipt for 1")
	s.wants(app, uuid, "ann", "999", 422, "")
	s.wants(app, uuid, "bob", "2", 200, "receipt for 2")
	s.wants(app, "", "ann", "3", 400, "")
	s.wantMade(2)
}

// Two processes get the same payment at the same time.
func TestFiberInTwoProcessesAtOnce(t *testing.T) {
	for _, c := range []struct {
		release release
		made    int32
	}{{old, 2}, {both, 1}, {ours, 1}} {
		t.Run(string(c.release), func(t *testing.T) {
			s := newShop(t)
			s.inside, s.proceed = make(chan struct{}, 2), make(chan struct{})
			var first, second sync.WaitGroup
			first.Go(func() { s.wants(s.process(c.release), uuid, "ann", "1", 200, "receipt for 1") })
			<-s.inside
			other := s.process(c.release)
			if c.release == old {
				second.Go(func() { s.wants(other, uuid, "ann", "1", 200, "receipt for 1") })
				<-s.inside // both
			} else {
				s.wants(other, uuid, "ann", "1", 409, "")
			}
			close(s.proceed)
			first.Wait()
			second.Wait()
			s.wants(other, uuid, "ann", "1", 200, "receipt for 1") // the refusal was not stored
			s.wantMade(c.made)
		})
	}
}

// A client sends a payment to the old release, and sends it again after the change.
func TestARetryAcrossTheChange(t *testing.T) {
	s := newShop(t)
	s.wants(s.process(old), uuid, "ann", "1", 200, "receipt for 1")
	s.wants(s.process(both), uuid, "ann", "1", 200, "receipt for 1")
	s.wantMade(1)
	s.wants(s.process(ours), uuid, "ann", "1", 200, "receipt for 1") // the control
	s.wantMade(2)

	s = newShop(t)
	s.wants(s.process(both), uuid, "ann", "1", 200, "receipt for 1")
	s.wants(s.process(old), uuid, "ann", "1", 200, "receipt for 1") // a rollback
	s.wants(s.process(ours), uuid, "ann", "1", 200, "receipt for 1")
	s.wantMade(1)
}
