package once_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/once"
	"github.com/interlock-go/interlock/core/memstore"
)

// A monitor reads each stage of a function, and never runs it.
func TestLookReadsAFunctionAndRunsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		engine, err := idempotency.New(store, idempotency.Global())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = engine.Close(t.Context()) }()
		look := func(key string, opts ...once.Option) (string, idempotency.Stage, error) {
			t.Helper()
			before := len(store.Records())
			out, stage, err := once.Look[string](t.Context(), engine, key, opts...)
			if after := len(store.Records()); after != before {
				t.Errorf("a look at %q makes %d records of %d", key, after, before)
			}
			return out, stage, err
		}
		if out, stage, err := look("job"); out != "" || stage != idempotency.StageFree || err != nil {
			t.Errorf("before a run: %q, %s, %v; want it free", out, stage, err)
		}
		begun, end := make(chan struct{}), make(chan struct{})
		go func() {
			_, _ = once.Do(t.Context(), engine, "job", 1, func(context.Context, int) (string, error) {
				close(begun)
				<-end
				return "done", nil
			})
		}()
		<-begun
		if _, stage, err := look("job"); stage != idempotency.StageInProgress || err != nil {
			t.Errorf("while it runs: %s, %v; want it in progress", stage, err)
		}
		close(end)
		synctest.Wait()
		if out, stage, err := look("job"); out != "done" || stage != idempotency.StageFinished || err != nil {
			t.Errorf("after the run: %q, %s, %v; want its result", out, stage, err)
		}
		if _, stage, _ := look("job", once.Scoped("tenant")); stage != idempotency.StageFree {
			t.Errorf("for another principal it is %s; want it free", stage)
		}
		time.Sleep(25 * time.Hour) // the retention
		if _, stage, err := look("job"); stage != idempotency.StageFree || err != nil {
			t.Errorf("after the retention: %s, %v; want it free", stage, err)
		}

		_, _ = once.Do(t.Context(), engine, "bad", 1, func(context.Context, int) (string, error) {
			return "", once.Final(errors.New("no such report"))
		})
		var stored *once.StoredError
		if _, _, err := look("bad"); !errors.As(err, &stored) || stored.Text != "no such report" {
			t.Errorf("a final error is %v; want the stored error", err)
		}
		if _, _, err := look(""); !errors.Is(err, core.ErrKey) {
			t.Errorf("an empty key: %v; want %v", err, core.ErrKey)
		}
		store.Intercept(func(memstore.Request) memstore.Fault { return memstore.Unreachable })
		if _, _, err := look("job"); !errors.Is(err, core.ErrUnavailable) {
			t.Errorf("without a store: %v; want %v", err, core.ErrUnavailable)
		}
	})
}
