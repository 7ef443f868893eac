package otellock_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel"

	"github.com/interlock-go/interlock/core/fleet"
	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/memstore"
)

func TestAnUnknownOutcomeIsMeasuredWithoutARetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, store := newProbe(t), memstore.New()
		f, err := fleet.On(store)
		if err != nil {
			t.Fatal(err)
		}
		_, err = store.Claim(t.Context(), record.ClaimRequest{
			ID: "dead", Token: "dead", Lease: time.Minute, Retention: time.Hour, Strict: true,
		})
		if err != nil {
			t.Fatal(err)
		}
		store.LapseClaims()
		counts := 0
		stop := p.observer.WatchUnknown(func(ctx context.Context) (int, error) {
			counts++
			return f.Unknown(ctx)
		})
		defer stop()
		p.observer.WatchUnknown(nil)()
		p.wantGauges() // the first collection starts the count
		synctest.Wait()
		p.wantGauges("idempotent.unknown{} 1 {request}")
		if err := store.Forget(t.Context(), "dead"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(59 * time.Second)
		p.wantGauges("idempotent.unknown{} 1 {request}")
		synctest.Wait()
		if counts != 1 {
			t.Errorf("the store was asked %d times in a minute, want once", counts)
		}
		time.Sleep(time.Second)
		p.gauges()
		synctest.Wait()
		p.wantGauges("idempotent.unknown{} 0 {request}")
		stop()
		stop()
		p.wantGauges()
		time.Sleep(time.Hour)
		p.wantGauges()
		if counts != 2 {
			t.Errorf("the store was asked %d times, want twice: none after stop", counts)
		}
	})
}

func TestASlowCountHoldsUpNoCollectionAndIsRare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProbe(t)
		counts, canceled := 0, false
		stop := p.observer.WatchUnknown(func(ctx context.Context) (int, error) {
			counts++
			select {
			case <-time.After(30 * time.Second):
				return 7, nil
			case <-ctx.Done():
				canceled = true
				return 0, ctx.Err()
			}
		})
		began := time.Now()
		for range 3 {
			p.wantGauges()
		}
		if d := time.Since(began); d != 0 {
			t.Errorf("the collections took %v, want no wait for the count", d)
		}
		time.Sleep(31 * time.Second)
		for range 24 {
			p.wantGauges("idempotent.unknown{} 7 {request}")
			time.Sleep(time.Minute)
		}
		if counts != 1 {
			t.Errorf("%d counts of 30 s in 24 minutes, want 1", counts)
		}
		time.Sleep(time.Minute)
		p.gauges()
		synctest.Wait()
		stop()
		synctest.Wait()
		if counts != 2 || !canceled {
			t.Errorf("%d counts, the last one ended by stop: %v; want 2, true", counts, canceled)
		}
	})
}

func TestWhatCannotBeCountedHasNoValueAndAnError(t *testing.T) {
	before := otel.GetErrorHandler()
	defer otel.SetErrorHandler(before)
	synctest.Test(t, func(t *testing.T) {
		var handled []string
		otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { handled = append(handled, err.Error()) }))
		p := newProbe(t)
		results := []func() (int, error){
			func() (int, error) { return 3, nil },
			func() (int, error) { return 0, errors.New("connection refused") },
			func() (int, error) { panic("nil map") },
			func() (int, error) { return 4, nil },
		}
		stop := p.observer.WatchUnknown(func(context.Context) (int, error) {
			next := results[0]
			results = results[1:]
			return next()
		})
		defer stop()
		for _, want := range [][]string{{"idempotent.unknown{} 3 {request}"}, nil, nil, {"idempotent.unknown{} 4 {request}"}} {
			p.gauges()
			synctest.Wait()
			p.wantGauges(want...)
			time.Sleep(time.Minute)
		}
		if len(handled) != 2 || !strings.Contains(handled[0], "connection refused") || !strings.Contains(handled[1], "nil map") {
			t.Errorf("handled the errors %q, want the refused connection and the panic", handled)
		}
	})
}
