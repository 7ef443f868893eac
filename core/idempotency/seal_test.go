package idempotency_test

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
)

// aead is a Seal as an application would make it.
func aead(t *testing.T) (seal, open func([]byte) ([]byte, error)) {
	t.Helper()
	key := make([]byte, 32)
	rand.Read(key)
	block, err := aes.NewCipher(key)
	if err != nil {
		t.Fatal(err)
	}
	gcm, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		t.Fatal(err)
	}
	return func(b []byte) ([]byte, error) { return gcm.Seal(nil, nil, b, nil), nil },
		func(b []byte) ([]byte, error) { return gcm.Open(nil, nil, b, nil) }
}

func TestSealedResponsesAreNotInPlainText(t *testing.T) {
	inBubble(t, func(w *world) {
		n := 0
		plain := w.engine()
		w.want(serve(w.Context(), plain, post("before"), answers(201, &n)), "201 run 1")
		e := plain.With(idempotency.Seal(aead(t)))
		w.want(serve(w.Context(), e, post("before"), answers(201, &n)), "replay 201 run 1")
		w.want(serve(w.Context(), e, post("k"), answers(201, &n)), "201 run 2")
		w.want(serve(w.Context(), e, post("k"), answers(201, &n)), "replay 201 run 2")
		for _, r := range w.store.Records() {
			if strings.Contains(r.Response, "run 2") {
				t.Error("a sealed response is in plain text")
			}
		}
		w.want(serve(w.Context(), plain, post("k"), answers(201, &n)), "idempotency-unavailable")
		other := plain.With(idempotency.Seal(aead(t)))
		w.want(serve(w.Context(), other, post("k"), answers(201, &n)), "idempotency-unavailable")
		w.leave(e, "damaged", "S")
		w.want(serve(w.Context(), e, post("damaged"), answers(201, &n)), "idempotency-unavailable")
	})
}

func TestAResponseThatCannotBeSealedIsSentAndNotStored(t *testing.T) {
	_, open := aead(t)
	for name, seal := range map[string]func([]byte) ([]byte, error){
		"error": func([]byte) ([]byte, error) { return nil, errors.New("no key") },
		"panic": func([]byte) ([]byte, error) { panic("no key") },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				n := 0
				e := w.engine(idempotency.Seal(seal, open))
				w.want(serve(w.Context(), e, post("k"), answers(201, &n)), "201 run 1")
				w.want(serve(w.Context(), e, post("k"), answers(201, &n)), "idempotency-response-unavailable")
			})
		})
	}
}

func TestAnswersTooLargeToStoreAreChecked(t *testing.T) {
	inBubble(t, func(w *world) {
		e := w.engine(idempotency.MaxResponse(3), idempotency.Under(w.losing()))
		sent := true
		w.want(serve(w.Context(), e, post("k"), func(_ context.Context, a endpoint.Attempt) (endpoint.Response, bool) {
			sent = a.TooLarge(201)
			return endpoint.Response{Status: 201}, true
		}), "ran, then lost")
		if sent {
			t.Error("an answer left whose lock was lost")
		}
	})
}

// lossy is a store that loses a lock as soon as it is asked about.
type lossy struct{ core.Store }

func (lossy) Acquire(context.Context, driver.AcquireRequest) (driver.Reply, error) {
	return driver.Reply{Granted: true, Token: 1, Sent: time.Now()}, nil
}

func (lossy) Renew(_ context.Context, batch []driver.Renewal, done func(int, bool, error)) {
	for i := range batch {
		done(i, false, driver.ErrNotOwner)
	}
}

func (lossy) Release(context.Context, driver.ReleaseRequest) (driver.Waiting, error) {
	return driver.Waiting{}, driver.ErrNotOwner
}

// losing returns a rule that checks answers and always loses its lock.
func (w *world) losing() *core.Guard {
	w.Helper()
	locker, err := core.New(lossy{})
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { _ = locker.Close(context.Background()) })
	return core.Serialize(locker, "account", core.CheckAnswer())
}
