package otellock_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/observe"
)

func TestALostLeaseIsCountedAndLoggedOnceAndIsNoLongerHeld(t *testing.T) {
	for reason, c := range map[observe.LossReason]struct {
		opts  []core.Option
		keys  []string
		lose  func(w *world)
		how   string // of the hold
		level string
		err   error // of the release
	}{
		observe.LossExpired: {
			opts: []core.Option{core.TTL(time.Second)}, lose: func(*world) { time.Sleep(time.Second) },
			how: "lost", level: "WARN", err: core.ErrLost,
		},
		observe.LossMaxHold: {
			opts: []core.Option{core.MaxHold(time.Second)}, lose: func(*world) { time.Sleep(time.Second) },
			how: "max_hold", level: "WARN", err: core.ErrMaxHold,
		},
		observe.LossTakenOver: { // both locks at once, in one batch
			keys: []string{"k", "m"},
			lose: func(w *world) {
				w.store.Take("k", time.Minute)
				w.store.Take("m", time.Minute)
				time.Sleep(11 * time.Second)
			},
			how: "lost", level: "ERROR", err: core.ErrLost,
		},
		observe.LossRevoked: {
			lose: func(w *world) {
				w.store.Intercept(failing(driver.ErrRevoked))
				time.Sleep(11 * time.Second)
				w.store.Intercept(nil)
			},
			how: "lost", level: "WARN", err: core.ErrLost,
		},
		observe.LossUnavailable: {
			lose: func(w *world) {
				w.store.Intercept(failing(core.ErrUnavailable))
				time.Sleep(30 * time.Second)
				w.store.Intercept(nil)
			},
			how: "lost", level: "ERROR", err: core.ErrLost,
		},
		observe.LossClosed: {
			lose: func(w *world) {
				ctx, cancel := context.WithTimeout(w.ctx, time.Second)
				defer cancel()
				if err := w.locker.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
					w.Error(err)
				}
			},
			how: "lost", level: "WARN", err: core.ErrLost,
		},
	} {
		for _, release := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, released %v", reason, release), func(t *testing.T) {
				inWorld(t, func(w *world) {
					keys := c.keys
					if keys == nil {
						keys = []string{"k"}
					}
					lease, err := w.locker.LockAll(w.ctx, keys, append(c.opts, core.Name("r"))...)
					if err != nil {
						w.Fatal(err)
					}
					begin := time.Now()
					c.lose(w)
					synctest.Wait()
					lostAt := time.Since(begin)
					if got, want := w.counts("interlock.lost", "interlock.leases"), []string{"leases{r} 0", fmt.Sprintf("lost{%s r} 1", reason)}; !slices.Equal(got, want) {
						w.Errorf("measured %q, want %q", got, want)
					}
					if release {
						time.Sleep(time.Hour) // not a part of the hold any more
						if err := lease.Release(w.ctx); !errors.Is(err, c.err) {
							w.Errorf("Release: %v", err)
						}
						found := slices.ContainsFunc(w.span("lock release r", 0).Attributes(), func(kv attribute.KeyValue) bool {
							return kv.Key == "interlock.loss_reason" && kv.Value.AsString() == string(reason)
						})
						if !found {
							w.Errorf("release span has %v", w.span("lock release r", 0).Attributes())
						}
					}
					hold := w.counts("interlock.hold.duration")
					if len(hold) != 1 || !strings.HasPrefix(hold[0], "hold.duration{"+c.how+" r} 1, ") {
						w.Errorf("held %q", hold)
					}
					if m := w.metrics()["interlock.hold.duration"].Data.(metricdata.Histogram[float64]).DataPoints[0]; m.Sum > lostAt.Seconds() {
						w.Errorf("held for %v s, lost after %v", m.Sum, lostAt)
					}
					var record struct {
						Level, Msg, Rule, Reason string
						Hash                     string `json:"key_hash"`
						Hashes                   []string
						Token, Held              int64
						Owner                    string
					}
					if err := json.Unmarshal([]byte(w.logs.String()), &record); err != nil {
						w.Fatalf("want one record: %v in %s", err, w.logs)
					}
					if record.Level != c.level || record.Rule != "r" || record.Reason != string(reason) || record.Token == 0 ||
						record.Owner == "" || record.Held != lostAt.Nanoseconds() && reason == observe.LossMaxHold ||
						len(keys) == 1 && record.Hash != hashOfK {
						w.Errorf("logged %s", w.logs)
					}
				})
			})
		}
	}
}

func TestALossThatOnlyTheReleaseFindsIsCountedAndLogged(t *testing.T) {
	inWorld(t, func(w *world) {
		lease := w.lock("k", core.Name("r"))
		w.store.Take("k", time.Minute)
		if err := lease.Release(w.ctx); !errors.Is(err, core.ErrLost) {
			w.Fatal(err)
		}
		w.wantCounts("acquire.duration{granted r} 1, 0 s", "hold.duration{lost r} 1, 0 s", "attempts{r} 1",
			"lost{taken_over r} 1", "waiters{r} 0", "leases{r} 0")
		wantSpan(w, w.span("lock release r", 0), w.caller, codes.Error, "rule=r", "key_hash="+hashOfK, "outcome=lost",
			"handed_over=false", "reentered=false", "token=yes", "loss_reason=taken_over", "error.type=lost")
		if n := strings.Count(w.logs.String(), "lease lost"); n != 1 {
			w.Errorf("logged %s", w.logs)
		}
	})
}

func TestAReleaseThatDoesNotReachTheStoreIsAnErrorAndEndsTheHold(t *testing.T) {
	inWorld(t, func(w *world) {
		lease := w.lock("k", core.Name("r"))
		w.store.Intercept(failing(driver.ErrNotReady))
		ctx, cancel := context.WithCancel(w.ctx)
		cancel() // a client that has gone has nothing to do with it
		if err := lease.Release(ctx); !errors.Is(err, driver.ErrNotReady) {
			w.Fatal(err)
		}
		wantSpan(w, w.span("lock release r", 0), w.caller, codes.Error, "rule=r", "key_hash="+hashOfK, "outcome=unavailable",
			"handed_over=false", "reentered=false", "token=yes", "error.type=unavailable")
		if got := w.counts("interlock.hold.duration", "interlock.leases"); !slices.Equal(got, []string{"hold.duration{unavailable r} 1, 0 s", "leases{r} 0"}) {
			w.Errorf("measured %q", got)
		}
	})
}

func TestARequestThatRunsWithoutItsLockIsCountedAndLoggedOnceAMinute(t *testing.T) {
	inWorld(t, func(w *world) {
		quiet := slog.Default()
		slog.SetDefault(slog.New(slog.DiscardHandler)) // where the guard itself warns
		defer slog.SetDefault(quiet)
		g := core.Serialize(w.locker, "account/{id}", core.FailOpen())
		w.store.Intercept(failing(core.ErrUnavailable))
		for range 5 {
			if refusal := g.Do(w.ctx, request{"id": "1"}, func(context.Context) bool { return true }); refusal != nil {
				w.Fatal(refusal.Err)
			}
		}
		time.Sleep(time.Minute)
		g.Do(w.ctx, request{"id": "1"}, func(context.Context) bool { return true })
		w.wantCounts("acquire.duration{unavailable account/{id}} 6, 0 s", "attempts{account/{id}} 6",
			"bypassed{account/{id}} 6", "waiters{account/{id}} 0")
		if got := w.names(); len(got) != 6 {
			w.Errorf("one span for each acquisition, got %v", got)
		}
		var numbers []float64
		for line := range strings.Lines(w.logs.String()) {
			var record map[string]any
			if err := json.Unmarshal([]byte(line), &record); err != nil {
				w.Fatal(err)
			}
			numbers = append(numbers, record["requests"].(float64))
		}
		if !slices.Equal(numbers, []float64{1, 5}) {
			w.Errorf("logged %s", w.logs)
		}
	})
}

func TestARequestWithoutAKeyHasAnAcquireSpanThatSaysWhy(t *testing.T) {
	inWorld(t, func(w *world) {
		quiet := slog.Default()
		slog.SetDefault(slog.New(slog.DiscardHandler))
		defer slog.SetDefault(quiet)
		g := core.Serialize(w.locker, "account/{id}")
		for _, req := range []request{{"id": ""}, {}} {
			if g.Do(w.ctx, req, func(context.Context) bool { return true }) == nil {
				w.Error("not refused")
			}
		}
		wantSpan(w, w.span("lock acquire account/{id}", 0), w.caller, codes.Unset, "rule=account/{id}", "outcome=bad_key", "error.type=bad_key")
		wantSpan(w, w.span("lock acquire account/{id}", 1), w.caller, codes.Error, "rule=account/{id}", "outcome=misconfigured", "error.type=misconfigured")
		w.wantCounts("rejected{bad_key account/{id}} 1", "rejected{misconfigured account/{id}} 1")
	})
}

func TestALossUnderAGuardSaysWhoseRequestItWas(t *testing.T) {
	inWorld(t, func(w *world) {
		jane := func(context.Context, core.Request) (string, error) { return "jane", nil }
		g := core.Serialize(w.locker, "account/{id}", core.PerPrincipal(jane, 1, 1))
		g.Do(w.ctx, request{"id": "1"}, func(ctx context.Context) bool {
			if refusal := g.Do(ctx, request{"id": "2"}, func(context.Context) bool { return true }); refusal == nil {
				w.Error("not refused")
			}
			w.store.Take("account/1", time.Minute)
			return true
		})
		w.wantCounts("acquire.duration{granted account/{id}} 1, 0 s", "attempts{account/{id}} 1",
			"hold.duration{lost account/{id}} 1, 0 s", "leases{account/{id}} 0", "lost{taken_over account/{id}} 1",
			"rejected{principal_limit account/{id}} 1", "waiters{account/{id}} 0")
		var record map[string]any
		if err := json.Unmarshal([]byte(w.logs.String()), &record); err != nil {
			w.Fatalf("want one record: %v in %s", err, w.logs)
		}
		for name, want := range map[string]string{
			"route": "/accounts/{id}", "principal_hash": core.Hashed("jane").Hash(), "answered": "yes", "reason": "taken_over",
			"key_hash": core.Hashed("account/1").Hash(),
		} {
			if record[name] != want {
				w.Errorf("%s is %v; want %s", name, record[name], want)
			}
		}
		if strings.Contains(w.logs.String(), "jane") {
			w.Errorf("logged %s", w.logs)
		}
	})
}

// A waiter may be granted the lock and lose it before it wakes: then the loss is reported to
// it first.
func TestALossBeforeTheGrantIsReportedLeavesNothingBehind(t *testing.T) {
	p := newProbe(t)
	_, observation := p.observer.Start(t.Context(), observe.Operation{Rule: "r", Keys: []string{"k"}})
	observation.Lost(core.Loss{Key: "k", Rule: "r", Reason: observe.LossNotOwner})
	observation.Acquired(observe.Acquired{Token: 1})
	observation.Released(observe.Released{Err: core.ErrLost})
	p.settled()
	if got := p.counts("interlock.lost"); !slices.Equal(got, []string{"lost{not_owner r} 1"}) {
		t.Errorf("measured %q", got)
	}
}
