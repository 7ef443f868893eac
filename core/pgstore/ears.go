package pgstore

import (
	"context"
	"sync"
)

// ears let the locks and the records of a store share one connection that listens: calls of
// Listen share one call of the [Listener].
type ears struct {
	listener Listener
	channel  func(context.Context) (string, error) // of the announcements

	mu     sync.Mutex
	shared *hearing // nil: the listener is not called
}

// hearing is a call of the listener, for all callers that share it.
type hearing struct {
	stop  context.CancelFunc
	ended chan struct{} // closed at its end
	err   error         // of the end

	// Guarded by the mutex of the ears.
	sharers map[*sharer]struct{}
	told    bool // the listener has said whether it hears
	hears   bool
}

// sharer is a call of [ears.Listen].
type sharer struct {
	hear  func(payload string)
	state func(listening bool)
}

// Listen implements [pglock.Listener]. It calls hear and state with its mutex held: they must
// not call Listen.
func (e *ears) Listen(ctx context.Context, hear func(payload string), state func(listening bool)) error {
	own := &sharer{hear, state}
	e.mu.Lock()
	if e.shared == nil {
		e.begin()
	}
	h := e.shared
	h.sharers[own] = struct{}{}
	if h.told {
		state(h.hears)
	}
	e.mu.Unlock()
	select {
	case <-h.ended:
		return h.err
	case <-ctx.Done():
	}
	if e.leave(h, own) {
		h.stop()
		<-h.ended
	}
	return context.Cause(ctx)
}

// begin calls the listener. Called with e.mu held.
func (e *ears) begin() {
	ctx, stop := context.WithCancel(context.Background())
	h := &hearing{stop: stop, ended: make(chan struct{}), sharers: make(map[*sharer]struct{})}
	e.shared = h
	go func() {
		defer stop()
		h.err = e.listen(ctx, h)
		e.mu.Lock()
		if e.shared == h {
			e.shared = nil
		}
		e.mu.Unlock()
		close(h.ended)
	}()
}

// listen calls the listener, and passes its messages on.
func (e *ears) listen(ctx context.Context, h *hearing) error {
	channel, err := e.channel(ctx)
	if err != nil {
		return err
	}
	return e.listener.Listen(ctx, channel, func(payload string) {
		e.mu.Lock()
		defer e.mu.Unlock()
		for s := range h.sharers {
			s.hear(payload)
		}
	}, func(listening bool) {
		e.mu.Lock()
		defer e.mu.Unlock()
		h.told, h.hears = true, listening
		for s := range h.sharers {
			s.state(listening)
		}
	})
}

// leave takes a sharer out, and reports whether it was the last one. Then the next call
// begins anew.
func (e *ears) leave(h *hearing, own *sharer) (last bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(h.sharers, own)
	if last = len(h.sharers) == 0; last && e.shared == h {
		e.shared = nil
	}
	return last
}
