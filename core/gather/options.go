package gather

import (
	"context"
	"fmt"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/internal/clock"
)

// Option is an option for [New]. Every [core.Option] is one, except core.Shared, core.Permits,
// core.Newest and core.OneWaiter, which New refuses. core.Wait bounds the time until an item is taken, and
// core.MaxWaiters the number of items of a key that wait in this process, without the items of the
// batch that is carried out. core.MaxHold bounds each section.
type Option = core.GatherOption

// own is an option of this package. The embedded interface is nil: it makes own an [Option].
type own struct {
	core.GatherOption
	apply func(*settings)
}

// settings are the options of this package.
type settings struct {
	most    int
	bytes   int
	size    any // func(Req) int
	linger  time.Duration
	latest  bool
	share   bool // the callers of superseded items get the result of the newest item
	values  func(context.Context) context.Context
	invalid error
}

// defaultMost is the default of [Most].
const defaultMost = 1000

func (s *settings) fail(format string, args ...any) {
	if s.invalid == nil {
		s.invalid = fmt.Errorf("%w: gather.%s", core.ErrConfig, fmt.Sprintf(format, args...))
	}
}

// Most bounds the number of items in a batch. The items after them are the next batch. n is at
// least 1. Default: 1,000.
func Most(n int) Option {
	return own{apply: func(s *settings) {
		if s.most = n; n < 1 {
			s.fail("Most(%d): must be at least 1", n)
		}
	}}
}

// MostBytes bounds the size of a batch, the sum of size over its items. The first item of a batch
// may be larger: it is then alone. size is called once for each item, on the goroutine of its caller.
// n is at least 1, and Req is the type of the group's items. Default: no bound.
func MostBytes[Req any](n int, size func(Req) int) Option {
	return own{apply: func(s *settings) {
		if s.bytes, s.size = n, size; n < 1 || size == nil {
			s.fail("MostBytes(%d, ...): must be at least 1, with a function", n)
		}
	}}
}

// Linger has the first caller of a key wait for more items before it asks for the lock: until d
// has passed since its item came, or the batch is full ([Most], [MostBytes]). No lock is held
// meanwhile. Each item is late by up to d, and by less where the key is busy anyway. Together with
// [Latest] it is a debounce. d is positive, at most 366 days, and shorter than core.Wait. Default: do
// not wait.
func Linger(d time.Duration) Option {
	return own{apply: func(s *settings) {
		s.linger = d
		if wrong := clock.Limits(d, 1, clock.LongestTime); wrong != "" {
			s.fail("Linger(%v): %s", d, wrong)
		}
	}}
}

// Latest keeps only the newest item of a key. When an item comes, the item that waits is not carried
// out, and its caller gets [core.ErrSuperseded] at once. An item that was taken is carried out to its
// end. Default: all items are carried out.
func Latest() Option {
	return own{apply: func(s *settings) { s.latest = true }}
}

// LatestShared is [Latest], but the callers of items that are not carried out wait. They get the
// result of the item that was carried out in their place, together with [core.ErrSuperseded], or
// its error joined to that.
func LatestShared() Option {
	return own{apply: func(s *settings) { s.latest, s.share = true, true }}
}

// Values sets a function that makes the context of a section. It gets the context of the caller that
// leads. The section has the values of the context that it returns, and neither its cancellation nor
// its deadline. f must not pass on values that belong to one caller, such as a principal or
// a transaction. To continue the trace of the leader:
//
//	gather.Values(func(leader context.Context) context.Context {
//		return trace.ContextWithSpan(context.Background(), trace.SpanFromContext(leader))
//	})
//
// Default: the section has no values.
func Values(f func(leader context.Context) context.Context) Option {
	return own{apply: func(s *settings) { s.values = f }}
}

// split returns the options of this package, and the options of package core.
func split(opts []Option) (s settings, rest []core.GatherOption) {
	s.most = defaultMost
	for _, o := range opts {
		if o, ok := o.(own); ok {
			o.apply(&s)
			continue
		}
		rest = append(rest, o)
	}
	return s, rest
}
