package interlockdebug_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/core/observe"
	"github.com/interlock-go/interlock/core/reason"
	"github.com/interlock-go/interlock/interlockdebug"
	_ "github.com/interlock-go/interlock/internal/bubble"
)

// ask asks a page.
func ask(h http.Handler, method, target, accept string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, target, nil)
	if accept != "" {
		r.Header.Set("Accept", accept)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// asJSON asks for JSON.
func asJSON(t *testing.T, h http.Handler) (s interlockdebug.Snapshot) {
	t.Helper()
	w := ask(h, http.MethodGet, "/", "application/json")
	if w.Code != http.StatusOK || w.Header().Get("Content-Type") != "application/json" {
		t.Fatalf("%d, %v", w.Code, w.Header())
	}
	if err := json.Unmarshal(w.Body.Bytes(), &s); err != nil {
		t.Fatalf("%v\n%s", err, w.Body)
	}
	return s
}

// newLocker makes a locker that is closed at the end.
func newLocker(t *testing.T, store core.Store, opts ...core.LockerOption) *core.Locker {
	t.Helper()
	l, err := core.New(store, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = l.Close(ctx) // a test may leave locks
	})
	return l
}

func lock(t *testing.T, l *core.Locker, key string, opts ...core.Option) *core.Lease {
	t.Helper()
	lease, err := l.Lock(t.Context(), key, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

func release(t *testing.T, lease *core.Lease) {
	t.Helper()
	if err := lease.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

// until waits for what happens on another goroutine of the bubble.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

func TestThePageShowsWhatIsHeldAndCountsWhatHappened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := interlockdebug.NewObserver()
		l := newLocker(t, memstore.New(), core.WithObserver(o))
		h := interlockdebug.Handler(l, interlockdebug.Observed(o))
		rule := core.Name("account/{id}")
		for range 3 {
			release(t, lock(t, l, "account/1", rule))
		}
		held := lock(t, l, "account/1", rule, core.Watchdog(time.Minute))
		inner, err := l.Lock(held.Context(), "account/1", rule)
		if err != nil {
			t.Fatal(err)
		}
		place := lock(t, l, "partner", core.Permits(3))
		if _, err := l.TryLock(t.Context(), "account/1", rule); !errors.Is(err, core.ErrHeld) {
			t.Fatal(err)
		}
		var waiting sync.WaitGroup
		waiting.Go(func() {
			lease, err := l.Lock(t.Context(), "account/1", rule, core.Watchdog(time.Minute))
			if err != nil {
				t.Error(err)
				return
			}
			time.Sleep(time.Second)
			release(t, lease)
		})
		until(t, "a waiter, and ages", func() bool {
			s := asJSON(t, h)
			return s.Waiting == 1 && len(s.Locks) == 2 && s.Locks[0].AgeSeconds > 0 && s.Locks[0].OldestWaitSeconds > 0
		})

		s := asJSON(t, h)
		if s.Held != 2 || s.Waiting != 1 || len(s.Locks) != 2 || !s.Observed || s.KeysShown || s.Host == "" || s.Process == 0 {
			t.Fatalf("%+v", s)
		}
		account, partner := s.Locks[0], s.Locks[1] // the older first
		if account.KeyHash != core.Hashed("account/1").Hash() || account.Key != "" || account.Kind != "exclusive" || account.Rule != "account/{id}" ||
			account.Token != held.Token() || account.Holds != 2 || account.Waiters != 1 || account.AgeSeconds <= 0 || account.OldestWaitSeconds <= 0 ||
			account.LeftSeconds < 50 || account.LeftSeconds > 60 {
			t.Errorf("%+v", account)
		}
		if partner.Kind != "permit" || partner.AtMost != 3 || partner.Waiters != 0 || partner.OldestWaitSeconds != 0 || partner.LeftSeconds > 30 {
			t.Errorf("%+v", partner)
		}
		release(t, inner)
		release(t, held)
		release(t, place)
		waiting.Wait()

		s = asJSON(t, h)
		if s.Held != 0 || s.Waiting != 0 || len(s.Locks) != 0 || len(s.Rules) != 2 {
			t.Fatalf("%+v", s)
		}
		r := s.Rules[1]
		if r.Rule != "account/{id}" || r.Granted != 5 || r.Reentered != 1 || r.Contended != 2 || r.HandedOver != 1 || r.Waiting != 0 || r.Holding != 0 ||
			len(r.Refused) != 1 || r.Refused[string(reason.Held)] != 1 || len(r.Lost) != 0 {
			t.Errorf("%+v", r)
		}
		if r.Wait.Count != 5 || r.Hold.Count != 5 || len(r.Wait.Buckets) != 8 || r.Hold.SumSeconds <= 0 {
			t.Errorf("wait %+v, hold %+v", r.Wait, r.Hold)
		}
		sum := int64(0)
		for _, b := range r.Hold.Buckets {
			sum += b.Count
		}
		if sum != 5 {
			t.Errorf("%d holds in %+v", sum, r.Hold.Buckets)
		}
		if s.Rules[0].Rule != "" || s.Rules[0].Granted != 1 {
			t.Errorf("%+v", s.Rules[0])
		}
	})
}

// failing is a store with renewals that fail, or find no lock.
type failing struct {
	core.Store
	mu  sync.Mutex
	err error
}

func (f *failing) set(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

func (f *failing) Renew(ctx context.Context, batch []driver.Renewal, done func(int, bool, error)) {
	f.mu.Lock()
	err := f.err
	f.mu.Unlock()
	if err == nil {
		f.Store.Renew(ctx, batch, done)
		return
	}
	for i := range batch {
		done(i, false, err)
	}
}

func TestThePageShowsFailedRenewalsAndLosses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &failing{Store: memstore.New()}
		o := interlockdebug.NewObserver()
		l := newLocker(t, store, core.WithObserver(o))
		h := interlockdebug.Handler(l, interlockdebug.Observed(o))
		shown := interlockdebug.Handler(l, interlockdebug.Observed(o), interlockdebug.ShowKeys())
		lease := lock(t, l, "account/secret", core.Name("rule"), core.Watchdog(9*time.Second))
		until(t, "a renewal", func() bool { return asJSON(t, h).Rules[0].Renewals == 1 })
		if got := asJSON(t, h).Locks[0]; got.Renewals != 1 || got.LastError != "" {
			t.Errorf("%+v", got)
		}
		store.set(fmt.Errorf("%w: reading account/secret", core.ErrUnavailable))
		until(t, "a failed renewal", func() bool { return asJSON(t, h).Rules[0].RenewalsFailed > 0 })
		if got := asJSON(t, h).Locks[0]; got.LastError == "" {
			t.Errorf("%+v", got)
		}
		store.set(errors.New("down: account/secret")) // the key in the root cause
		until(t, "an error with the key", func() bool { return strings.Contains(asJSON(t, h).Locks[0].LastError, "has the key") })
		until(t, "the same where keys are shown", func() bool { return asJSON(t, shown).Locks[0].LastError == "down: account/secret" })
		if body := ask(h, http.MethodGet, "/", "").Body.String(); strings.Contains(body, "secret") || !strings.Contains(body, "Renewals fail") {
			t.Errorf("%s", body)
		}
		store.set(driver.ErrDeleted)
		until(t, "the loss", func() bool { return len(asJSON(t, h).Losses) == 1 })
		s := asJSON(t, h)
		if got := s.Losses[0]; got.KeyHash != core.Hashed("account/secret").Hash() || got.Key != "" || got.Rule != "rule" ||
			got.Reason != string(observe.LossDeleted) || got.Token != lease.Token() || got.HeldSeconds <= 0 || got.Time.IsZero() {
			t.Errorf("%+v", got)
		}
		if got := s.Rules[0]; got.Lost["deleted"] != 1 || got.Holding != 0 || s.Held != 0 {
			t.Errorf("%+v", s)
		}
		_ = lease.Release(t.Context()) // ErrLost
		if got := asJSON(t, shown); len(got.Losses) != 1 || got.Losses[0].Key != "account/secret" || got.Rules[0].Hold.Count != 1 {
			t.Errorf("%+v", got)
		}
		if body := ask(shown, http.MethodGet, "/", "").Body.String(); !strings.Contains(body, "Last losses") || !strings.Contains(body, "account/secret") {
			t.Errorf("%s", body)
		}
	})
}

// call is a request to an idempotent endpoint.
type call struct{ key string }

func (c call) Protocol() string                 { return endpoint.HTTP }
func (c call) Key() (string, error)             { return endpoint.ParseKey([]string{c.key}) }
func (c call) Target() (string, string, string) { return "POST", "/payments", "" }
func (c call) Origin() (string, string, string) { return "", "/payments", "" }
func (c call) Route() (string, bool)            { return "/payments", true }
func (c call) Param(string) (string, error)     { return "", nil }
func (c call) Header(string) []string           { return nil }
func (c call) Query(string) []string            { return nil }
func (c call) Native() any                      { return c }
func (c call) Value(any) any                    { return nil }
func (c call) Body(int64) ([]byte, error)       { return nil, nil }

func TestThePageShowsClaimsThatArePending(t *testing.T) {
	o := interlockdebug.NewObserver()
	l := newLocker(t, memstore.New())
	engine, err := idempotency.New(memstore.New(), idempotency.Name("payment"), idempotency.Global(), idempotency.WithObserver(o))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = engine.Close(t.Context()) }()
	h := interlockdebug.Handler(l, interlockdebug.Engines(nil, engine), interlockdebug.Observed(o))
	engine.Do(t.Context(), call{"customer-key"}, endpoint.Handler{
		Run: func(context.Context, endpoint.Attempt) (endpoint.Response, bool) {
			s := asJSON(t, h)
			if s.Pending != 1 || len(s.Claims) != 1 {
				t.Errorf("%+v", s)
				return endpoint.Response{Status: 201}, true
			}
			c := s.Claims[0]
			if c.Rule != "payment" || c.State != "running" || c.Generation != 1 || c.AgeSeconds <= 0 || c.LeftSeconds <= 0 || len(c.Record) != 43 {
				t.Errorf("%+v", c)
			}
			if body := ask(h, http.MethodGet, "/", "").Body.String(); !strings.Contains(body, c.Record) || strings.Contains(body, "customer-key") {
				t.Errorf("%s", body)
			}
			return endpoint.Response{Status: 201}, true
		},
	})
	s := asJSON(t, h)
	if s.Pending != 0 || len(s.Rules) != 1 || s.Rules[0].Rule != "payment" || s.Rules[0].Decided[observe.DecidedStored] != 1 {
		t.Errorf("%+v", s)
	}
	if body := ask(h, http.MethodGet, "/", "").Body.String(); !strings.Contains(body, "1 stored") {
		t.Errorf("%s", body)
	}
}

// The names of the fields are a promise.
func TestTheFieldsOfTheJSON(t *testing.T) {
	o := interlockdebug.NewObserver()
	l := newLocker(t, memstore.New(), core.WithObserver(o))
	defer release(t, lock(t, l, "k", core.Name("rule")))
	var got map[string]any
	if err := json.Unmarshal(ask(interlockdebug.Handler(l, interlockdebug.Observed(o)), http.MethodGet, "/", "application/json").Body.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	fields := func(v any) []string {
		var names []string
		for name := range v.(map[string]any) {
			names = append(names, name)
		}
		slices.Sort(names)
		return names
	}
	for _, c := range []struct {
		of   any
		want string
	}{
		{got, "claims held host keys_shown locks losses observed pending pid rules time waiting"},
		{got["locks"].([]any)[0], "age_seconds held holds key_hash kind left_seconds rule token waiters"},
		{got["rules"].([]any)[0], "bypassed contended decided granted handed_over hold holding lost reentered refused rejected renewals renewals_failed rule wait waiting"},
		{got["rules"].([]any)[0].(map[string]any)["wait"], "buckets count sum_seconds"},
	} {
		if names := strings.Join(fields(c.of), " "); names != c.want {
			t.Errorf("%s; want %s", names, c.want)
		}
	}
}

func TestManyLocksAndRulesAreBounded(t *testing.T) {
	o := interlockdebug.NewObserver()
	l := newLocker(t, memstore.New(), core.WithObserver(o))
	h := interlockdebug.Handler(l, interlockdebug.Observed(o))
	for i := range 1100 {
		defer release(t, lock(t, l, fmt.Sprint("k", i), core.Name(fmt.Sprint("rule", i))))
	}
	s := asJSON(t, h)
	if s.Held != 1100 || len(s.Locks) != 1000 || len(s.Rules) != 201 || s.Rules[0].Rule != "(other rules)" || s.Rules[0].Granted != 900 {
		t.Errorf("%d held, %d shown, %d rules, first %+v", s.Held, len(s.Locks), len(s.Rules), s.Rules[0])
	}
	if body := ask(h, http.MethodGet, "/", "").Body.String(); !strings.Contains(body, "The first 1000 are shown") || !strings.Contains(body, "1,100") {
		t.Error("the page does not say how many there are")
	}
}

func TestThePageCanBeReadBesideWork(t *testing.T) {
	o := interlockdebug.NewObserver()
	l := newLocker(t, memstore.New(), core.WithObserver(o))
	h := interlockdebug.Handler(l, interlockdebug.Observed(o), interlockdebug.ShowKeys())
	done := make(chan struct{})
	var work sync.WaitGroup
	total := make([]int64, 4)
	for i := range total {
		work.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				lease, err := l.Lock(t.Context(), fmt.Sprint("k", i%2), core.Name("rule"))
				if err != nil {
					t.Error(err)
					return
				}
				total[i]++
				if err := lease.Release(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i := range 1000 {
		if w := ask(h, http.MethodGet, "/", []string{"text/html", "application/json"}[i%2]); w.Code != http.StatusOK {
			t.Fatalf("%d", w.Code)
		}
	}
	close(done)
	work.Wait()
	s := asJSON(t, h)
	want := total[0] + total[1] + total[2] + total[3]
	if r := s.Rules[0]; r.Granted != want || r.Hold.Count != want || r.Waiting != 0 || r.Holding != 0 || s.Held != 0 {
		t.Errorf("%+v; want %d", r, want)
	}
}

// A process may wait to lead for weeks, which says nothing of how long a lock takes.
func TestTheWaitToLeadIsInNoHistogram(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, o := memstore.New(), interlockdebug.NewObserver()
		l := newLocker(t, store, core.WithObserver(o))
		store.Take("leader", time.Hour)
		if err := core.Lead(t.Context(), l, "leader", func(context.Context) error { return nil }, core.Name("lead")); err != nil {
			t.Error(err)
		}
		r := asJSON(t, interlockdebug.Handler(l, interlockdebug.Observed(o))).Rules[0]
		if r.Granted != 1 || r.Wait.Count != 0 || r.Hold.Count != 1 {
			t.Errorf("%+v", r)
		}
	})
}

func TestAPageOfTwoObserversIsRefused(t *testing.T) {
	defer func() {
		if err, is := recover().(error); !is || !errors.Is(err, core.ErrConfig) {
			t.Errorf("the panic is %v; want core.ErrConfig, since one observer would hide the other", err)
		}
	}()
	locker, err := core.New(memstore.New())
	if err != nil {
		t.Fatal(err)
	}
	defer locker.Close(t.Context())
	interlockdebug.Handler(locker, interlockdebug.Observed(interlockdebug.NewObserver()), interlockdebug.Observed(interlockdebug.NewObserver()))
}
