package gather_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/gather"
	"github.com/interlock-go/interlock/internal/testkit"
)

func TestABatchIsBounded(t *testing.T) {
	for name, c := range map[string]struct {
		opt  gather.Option
		want []string
	}{
		"Most":      {gather.Most(2), []string{"k: [a]", "k: [bbbb c]", "k: [d e]", "k: [f]"}},
		"MostBytes": {gather.MostBytes(3, func(s string) int { return len(s) }), []string{"k: [a]", "k: [bbbb]", "k: [c d e]", "k: [f]"}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(_ *testing.T, w *world) {
				for _, item := range []string{"a", "bbbb", "c", "d", "e", "f"} {
					w.do("k", item)
				}
				for range c.want {
					w.ends <- end{}
				}
				w.wantRan(c.want...)
			}, c.opt)
		})
	}
}

func TestLingerWaitsForMore(t *testing.T) {
	for name, c := range map[string]struct {
		items []string // one each second
		took  time.Duration
	}{
		"at most so long":          {[]string{"a", "b", "c"}, 10 * time.Second},
		"until the batch is full":  {[]string{"a", "b", "c", "d"}, 3 * time.Second},
		"if its caller has left":   {[]string{"-a", "b", "c"}, 10 * time.Second},
		"and full without another": {[]string{"-a", "b", "c", "d", "e"}, 4 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				w.ends = nil
				begin := time.Now()
				var last, leaver *call
				var want []string
				for i, item := range c.items {
					if i > 0 {
						time.Sleep(time.Second)
					}
					last = w.do("k", strings.TrimPrefix(item, "-"))
					if leaver != nil {
						leaver.leave(errLeft)
						leaver.want("", errLeft)
						leaver = nil
					}
					if item[0] == '-' {
						leaver = last
						continue
					}
					want = append(want, item)
				}
				<-last.done
				if took := time.Since(begin); took != c.took {
					t.Errorf("carried out after %v; want %v", took, c.took)
				}
				w.wantRan("k: [" + strings.Join(want, " ") + "]")
			}, gather.Linger(10*time.Second), gather.Most(4))
		})
	}
}

func TestOnlyTheLatestItemIsCarriedOut(t *testing.T) {
	broken := errors.New("the disk is full")
	for name, c := range map[string]struct {
		opts   []gather.Option
		shared bool
		end    end
	}{
		"Latest":                      {[]gather.Option{gather.Latest()}, false, end{}},
		"Latest after a while":        {[]gather.Option{gather.Latest(), gather.Linger(time.Second)}, false, end{}},
		"LatestShared":                {[]gather.Option{gather.LatestShared()}, true, end{}},
		"LatestShared with a failure": {[]gather.Option{gather.LatestShared()}, true, end{err: broken}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(_ *testing.T, w *world) {
				free := w.heldElsewhere("k")
				a, b, gone := w.do("k", "a"), w.do("k", "b"), w.do("k", "gone")
				gone.leave(errLeft)
				if c.shared { // what waits for the result can leave, too
					gone.want("", errLeft)
				}
				last := w.do("k", "c")
				if c.shared {
					a.leave(errLeft)
					a.want("", core.ErrSuperseded)
					b.want("", core.ErrSuperseded) // with the item that left
				} else {
					a.want("", core.ErrSuperseded)
					b.want("", core.ErrSuperseded)
				}
				old := last
				last = w.do("k", "d")
				w.ends <- c.end
				free()
				time.Sleep(time.Second)
				w.wantRan("k: [d]")
				switch {
				case c.end.err != nil:
					last.want("done d", broken)
					old.want("done d", core.ErrSuperseded, broken)
				case c.shared:
					last.want("done d")
					old.want("done d", core.ErrSuperseded)
				default:
					last.want("done d")
					old.want("", core.ErrSuperseded)
				}
			}, c.opts...)
		})
	}
}

func TestMaxWaitersBoundsTheItemsOfAKey(t *testing.T) {
	inBubble(t, func(_ *testing.T, w *world) {
		w.do("k", "a")
		w.do("k", "b")
		w.do("k", "c")
		w.do("k", "d").want("", core.ErrQueueFull, core.ErrHeld)
		w.do("l", "e").waits()
		for range 3 {
			w.ends <- end{}
		}
	}, core.MaxWaiters(2))
}

func TestWithoutWaitingOnlyAFreeLockIsTaken(t *testing.T) {
	inBubble(t, func(_ *testing.T, w *world) {
		a := w.do("k", "a")
		w.do("k", "b").want("", core.ErrHeld)
		w.ends <- end{}
		a.want("done a")
	}, core.Wait(0))
}

func TestOptionsThatCannotWorkAreRefused(t *testing.T) {
	locker, w := testkit.Locker(t), &world{}
	size := gather.MostBytes(1, func(int) int { return 1 })
	for text, make := range map[string]func(){
		"nil locker":              func() { gather.New(nil, w.section) },
		"nil section":             func() { gather.New[int, int](locker, nil) },
		"Most(0)":                 func() { gather.New(locker, w.section, gather.Most(0)) },
		"MostBytes(0, ...)":       func() { gather.New(locker, w.section, gather.MostBytes(0, func(s string) int { return len(s) })) },
		"func(int) int":           func() { gather.New(locker, w.section, size) },
		"Linger(0s)":              func() { gather.New(locker, w.section, gather.Linger(0)) },
		"would end before":        func() { gather.New(locker, w.section, gather.Linger(2*time.Second), core.Wait(time.Second)) },
		"several sections":        func() { gather.New(locker, w.section, core.Shared()) },
		"gather.Latest":           func() { gather.New(locker, w.section, core.Newest()) },
		"MaxWaiters(0)":           func() { gather.New(locker, w.section, core.MaxWaiters(0)) },
		"give one of them":        func() { gather.New(locker, w.section, core.TTL(time.Second), core.Watchdog(time.Second)) },
		"OneWaiter is not for":    func() { gather.New(locker, w.section, core.OneWaiter()) },
		"Permits are not for gat": func() { gather.New(locker, w.section, core.Permits(2)) },
	} {
		t.Run(text, func(t *testing.T) {
			defer func() {
				err, _ := recover().(error)
				if !errors.Is(err, core.ErrConfig) || !strings.Contains(err.Error(), text) {
					t.Errorf("%v; want ErrConfig that says %q", err, text)
				}
			}()
			make()
		})
	}
}
