package zkstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/interlock-go/interlock/core/driver"
)

// poll is the time between two looks of the adapter for a session.
const poll = 5 * time.Millisecond

// errOtherSession says that a read may be older than a write of this store: a new session can
// be with a member that lags behind.
var errOtherSession = errors.New("zkstore: the session has ended under way")

// ready waits for a session. Without one nothing is sent: the client would keep the request,
// and send it when its caller has left.
func (s *server) ready(ctx context.Context) error {
	for s.conn.State() != zk.StateHasSession {
		timer := time.NewTimer(poll)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("%w: %w: %w", driver.ErrNotReady, context.Cause(ctx), s.conn.absent())
		}
	}
	if ctx.Err() != nil {
		return fmt.Errorf("%w: %w", driver.ErrNotReady, context.Cause(ctx))
	}
	return nil
}

// call executes a request of the client, which takes no context, and may go on when ctx has
// ended.
func call[T any](ctx context.Context, s *server, request func() (T, error)) (answer T, err error) {
	if err := s.ready(ctx); err != nil {
		return answer, err
	}
	type result struct {
		answer T
		err    error
	}
	done := make(chan result, 1)
	go func() {
		answer, err := request()
		done <- result{answer, err}
	}()
	select {
	case r := <-done:
		return r.answer, explain(r.err)
	case <-ctx.Done():
		return answer, context.Cause(ctx)
	}
}

// mistaken reports whether a transaction was not executed because nodes differ from the
// adapter's knowledge.
func mistaken(err error) bool {
	return errors.Is(err, zk.ErrBadVersion) || errors.Is(err, zk.ErrNodeExists) || errors.Is(err, zk.ErrNoNode) ||
		errors.Is(err, zk.ErrNotEmpty)
}
