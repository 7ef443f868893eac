package pgstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

// scripted is a listener. A test plays its calls.
type scripted struct {
	calls   atomic.Int64
	channel string
	hear    func(payload string)
	state   func(listening bool)
	ctx     context.Context
	fail    chan error
}

func (s *scripted) Listen(ctx context.Context, channel string, hear func(string), state func(bool)) error {
	s.calls.Add(1)
	s.channel, s.ctx, s.hear, s.state = channel, ctx, hear, state
	select {
	case err := <-s.fail:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// part is a caller that shares the ears.
type part struct {
	got   []string
	stop  context.CancelFunc
	ended chan error
}

func (p *part) begin(ctx context.Context, e *ears) {
	ctx, p.stop = context.WithCancel(ctx)
	p.ended = make(chan error, 1)
	go func() {
		p.ended <- e.Listen(ctx, func(payload string) { p.got = append(p.got, payload) },
			func(listening bool) { p.got = append(p.got, fmt.Sprint(listening)) })
	}()
}

func (p *part) want(t *testing.T, got ...string) {
	t.Helper()
	if !slices.Equal(p.got, got) {
		t.Errorf("heard %q; want %q", p.got, got)
	}
	p.got = nil
}

func TestEarsShareOneCallOfTheListener(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &scripted{fail: make(chan error)}
		broken := errors.New("broken")
		unknown := broken
		e := &ears{listener: l, channel: func(context.Context) (string, error) { return "c", unknown }}
		var first, second part
		first.begin(t.Context(), e)
		if err := <-first.ended; !errors.Is(err, broken) || l.calls.Load() != 0 {
			t.Errorf("without a channel: %v, after %d calls of the listener", err, l.calls.Load())
		}
		unknown = nil
		synctest.Wait()
		first.begin(t.Context(), e)
		synctest.Wait()
		if l.channel != "c" {
			t.Errorf("the listener is called for the channel %q", l.channel)
		}
		l.hear("a")
		l.state(true)
		second.begin(t.Context(), e)
		synctest.Wait()
		l.hear("b")
		l.state(false)
		first.want(t, "a", "true", "b", "false")
		second.want(t, "true", "b", "false") // the state as it was when it came

		l.fail <- broken
		if err := errors.Join(<-first.ended, <-second.ended); !errors.Is(err, broken) {
			t.Errorf("the end is %v", err)
		}
		synctest.Wait()
		second.begin(t.Context(), e)
		synctest.Wait()
		first.begin(t.Context(), e)
		synctest.Wait()
		l.state(true)
		first.want(t, "true")
		second.want(t, "true")
		if n := l.calls.Load(); n != 2 {
			t.Errorf("the listener was called %d times; want 2", n)
		}

		second.stop()
		if err := <-second.ended; !errors.Is(err, context.Canceled) {
			t.Errorf("a part that ends gets %v", err)
		}
		l.hear("c")
		first.want(t, "c")
		second.want(t)
		if l.ctx.Err() != nil {
			t.Error("the listener ends when the first of two parts ends")
		}
		first.stop()
		if err := <-first.ended; !errors.Is(err, context.Canceled) {
			t.Errorf("the last part gets %v", err)
		}
		if l.ctx.Err() == nil {
			t.Error("the listener goes on without a part")
		}
		first.begin(t.Context(), e)
		synctest.Wait()
		if n := l.calls.Load(); n != 3 {
			t.Errorf("the listener was called %d times; want 3", n)
		}
		first.stop()
		if err := <-first.ended; !errors.Is(err, context.Canceled) {
			t.Errorf("the last part gets %v", err)
		}
	})
}
