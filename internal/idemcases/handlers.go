package idemcases

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/interlock-go/interlock/core/adapter/adaptertest"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/internal/testkit"
)

// handler is the handler of an endpoint.
type handler func(ctx context.Context) (adaptertest.Result, string)

// payments counts effects, and answers with their number.
type payments struct{ effects atomic.Int64 }

func (b *payments) pay(context.Context) (adaptertest.Result, string) {
	return adaptertest.OK, fmt.Sprint("payment ", b.effects.Add(1))
}

// fails is a handler that gives its first answer once, and then pays.
func (b *payments) fails(first handler) handler {
	return func(ctx context.Context) (adaptertest.Result, string) {
		if b.effects.Add(1) == 1 {
			return first(ctx)
		}
		return adaptertest.OK, fmt.Sprint("payment ", b.effects.Load())
	}
}

func says(result adaptertest.Result, text string) handler {
	return func(context.Context) (adaptertest.Result, string) { return result, text }
}

// marks marks the effect before h.
func (f *fixture) marks(h handler) handler {
	return func(ctx context.Context) (adaptertest.Result, string) {
		if err := idempotency.MarkEffect(ctx); err != nil {
			f.Errorf("marking the effect: %v", err)
		}
		return h(ctx)
	}
}

// held is a handler that waits at a gate.
func held(g testkit.Gate, h handler) handler {
	return func(ctx context.Context) (adaptertest.Result, string) {
		g.Pass()
		return h(ctx)
	}
}

// die ends an engine as the end of its process would: none of its claims is given up.
func die(e *idempotency.Engine) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = e.Close(ctx)
}
