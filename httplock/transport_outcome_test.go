package httplock_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/core/reason"
	"github.com/interlock-go/interlock/httplock"
)

// roundTripper is a function as an http.RoundTripper.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// hangs is a server that gets the request and does not answer.
func hangs(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// isUnknown reports whether the caller gets the key of a request that may have been carried out.
func isUnknown(t *testing.T, what string, err error) (key string) {
	t.Helper()
	var failed *idempotency.RequestError
	if !errors.As(err, &failed) || !errors.Is(err, idempotency.ErrOutcomeUnknown) || failed.Key == "" || failed.RetryAfter <= 0 {
		t.Errorf("%s: %v (%+v); want an unknown outcome, the key, and when to ask again", what, err, failed)
		return ""
	}
	return failed.Key
}

// net/http replaces an error after Client.Timeout by its text.
func TestTheTimeoutOfAClientDoesNotLoseTheKey(t *testing.T) {
	for _, limit := range []time.Duration{50 * time.Millisecond, time.Second, time.Minute} {
		for name, answer := range map[string]roundTripper{"no answer": hangs, "no rest of the answer": func(r *http.Request) (*http.Response, error) {
			body := io.MultiReader(strings.NewReader("half"), reader(func() error { <-r.Context().Done(); return r.Context().Err() }))
			return &http.Response{StatusCode: 201, Header: http.Header{}, Body: io.NopCloser(body), Request: r}, nil
		}} {
			synctest.Test(t, func(t *testing.T) {
				client := &http.Client{Transport: &httplock.Transport{Base: answer}, Timeout: limit}
				begin := time.Now()
				res, err := client.Post("http://bank/payments", "", strings.NewReader("pay"))
				if err == nil {
					_, err = io.ReadAll(res.Body)
					_ = res.Body.Close()
				}
				isUnknown(t, name, err)
				var late *url.Error
				if errors.As(err, &late) && !late.Timeout() {
					t.Errorf("%s: %v; want it to be a timeout", name, err)
				}
				if d := time.Since(begin); d >= limit || d < limit*9/10-time.Second {
					t.Errorf("%s: gave up after %v of %v", name, d, limit)
				}
			})
		}
	}
}

// A deadline of the context is used whole: net/http leaves the error as it is.
func TestTheDeadlineOfAContextIsUsedWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begin := time.Now()
		r, _ := http.NewRequestWithContext(ctx, http.MethodPost, "http://bank/payments", strings.NewReader("pay"))
		_, err := (&http.Client{Transport: &httplock.Transport{Base: roundTripper(hangs)}}).Do(r) //nolint:bodyclose // none
		if isUnknown(t, "no answer", err); time.Since(begin) != time.Second {
			t.Errorf("gave up after %v of a second", time.Since(begin))
		}
	})
}

type reader func() error

func (f reader) Read([]byte) (int, error) { return 0, f() }

// The process that sent the key before has died, and the work of the endpoint is unknown.
func TestAKeyThatWasSentBeforeACrashIsNotTakenForRefused(t *testing.T) {
	for _, c := range []struct {
		name   string
		answer func(*http.Request) (*http.Response, error)
		status int // 0: unknown
	}{
		{"the store is down", says(503, "type", "idempotency-unavailable"), 0},
		{"a proxy without a server", says(502), 0},
		{"a rate limit", says(429), 0},
		{"the lock is held", says(423, "type", "held"), 0},
		{"no right", says(403), 0},
		{"a login page", says(302), 0},
		{"carried out before", says(201, "Idempotent-Replayed", "true", "type", "answered"), 201},
		{"refused before", says(402, "Idempotent-Replayed", "true", "type", "answered"), 402},
		{"refused now", says(402, "type", "answered"), 402},
		{"not now", says(409, "type", "answered"), 409},
	} {
		synctest.Test(t, func(t *testing.T) {
			server := &script{answers: []func(*http.Request) (*http.Response, error){c.answer}}
			r, _ := http.NewRequestWithContext(idempotency.WithKey(t.Context(), "order-17"), http.MethodPost, "http://bank/payments", nil)
			res, err := (&httplock.Transport{Base: server}).RoundTrip(r) //nolint:bodyclose // of the script
			switch {
			case c.status == 0:
				if key := isUnknown(t, c.name, err); key != "order-17" {
					t.Errorf("%s: the key is %q", c.name, key)
				}
			case err != nil || res.StatusCode != c.status:
				t.Errorf("%s: %v, %v; want status %d", c.name, res, err, c.status)
			}
		})
	}
}

// An endpoint of another make has no marks, and the client knows its answers.
func TestAnEndpointWithoutMarksIsToldByAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours := func(res *http.Response) bool { return res.Header.Get("Content-Type") == "application/json" }
		for kind, status := range map[string]int{"application/json": 402, "text/html": 0} {
			server := &script{answers: []func(*http.Request) (*http.Response, error){breaks, says(402, "Content-Type", kind)}}
			client := &http.Client{Transport: &httplock.Transport{Base: server, Answered: ours}}
			res, err := client.Post("http://bank/payments", "", nil) //nolint:bodyclose // of the script
			if status == 0 {
				isUnknown(t, kind, err)
			} else if err != nil || res.StatusCode != status {
				t.Errorf("%s: %v, %v; want status %d", kind, res, err, status)
			}
		}
	})
}

// A status says that the payment was made. The caller needs the rest to know which.
func TestAnAnswerThatBreaksOffKeepsTheKey(t *testing.T) {
	for status, unknown := range map[int]bool{201: true, 303: true, 402: false} {
		server := roundTripper(func(r *http.Request) (*http.Response, error) {
			return &http.Response{
				StatusCode: status, Header: http.Header{}, Request: r,
				Body: io.NopCloser(io.MultiReader(strings.NewReader("half"), reader(func() error { return io.ErrUnexpectedEOF }))),
			}, nil
		})
		r, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://bank/payments", nil)
		res, err := (&httplock.Transport{Base: server}).RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(res.Body)
		var failed *idempotency.RequestError
		if !errors.As(err, &failed) || failed.Key == "" || failed.Status != status || errors.Is(err, idempotency.ErrOutcomeUnknown) != unknown ||
			!errors.Is(err, io.ErrUnexpectedEOF) || string(got) != "half" {
			t.Errorf("%d: %q, %v; want the key, and an unknown outcome: %v", status, got, err, unknown)
		}
		if err := res.Body.Close(); err != nil {
			t.Error(err)
		}
		if _, err := res.Body.Read(make([]byte, 1)); errors.As(err, &failed) && failed == nil {
			t.Errorf("%d: %v after Close", status, err)
		}
	}
}

// An incomplete response must not prevent the next try.
func TestARefusalThatDoesNotEndIsSentAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		server := roundTripper(func(r *http.Request) (*http.Response, error) {
			if n++; n > 1 {
				return says(201)(r)
			}
			body := reader(func() error { <-r.Context().Done(); return r.Context().Err() })
			return &http.Response{StatusCode: 503, Header: http.Header{}, Request: r, Body: io.NopCloser(body)}, nil
		})
		begin := time.Now()
		res, err := (&http.Client{Transport: &httplock.Transport{Base: server}}).Post("http://bank/payments", "", nil) //nolint:bodyclose // of the script
		if err != nil || res.StatusCode != 201 || time.Since(begin) > 2*time.Second {
			t.Errorf("%v, %v after %v; want 201 within two seconds", res, err, time.Since(begin))
		}
	})
}

// inside serves an idempotent endpoint with a profile inside the process.
func inside(t *testing.T, store *memstore.Store, profile reason.Profile, handler http.HandlerFunc) (base http.RoundTripper, end func()) {
	t.Helper()
	engine, err := idempotency.New(store, idempotency.Global(), idempotency.Profile(profile))
	if err != nil {
		t.Fatal(err)
	}
	h := httplock.Idempotent(engine)(handler)
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		w := httptest.NewRecorder()
		sent := httptest.NewRequestWithContext(r.Context(), r.Method, r.URL.String(), r.Body)
		sent.Header = r.Header
		h.ServeHTTP(w, sent)
		return w.Result(), nil
	}), func() { _ = engine.Close(context.Background()) }
}

// The refusals of published protocols are no problem details.
func TestTheRefusalsOfEachProfileAreRead(t *testing.T) {
	for _, profile := range []reason.Profile{reason.IETFDraft, reason.AgenticCommerce, reason.UniversalCommerce} {
		synctest.Test(t, func(t *testing.T) {
			store := memstore.New()
			base, end := inside(t, store, profile, func(_ http.ResponseWriter, r *http.Request) {
				if err := idempotency.MarkEffect(r.Context()); err != nil {
					t.Error(err)
				}
				<-r.Context().Done() // it does not answer until its claim is lost
			})
			defer end()
			post := func(key, body string) error {
				r, _ := http.NewRequestWithContext(idempotency.WithKey(t.Context(), key), http.MethodPost, "http://bank/payments", strings.NewReader(body))
				res, err := (&httplock.Transport{Base: base, Tries: 2}).RoundTrip(r)
				if err == nil {
					_ = res.Body.Close()
				}
				return err
			}
			dead, die := context.WithCancel(t.Context())
			first := make(chan struct{})
			go func() {
				defer close(first)
				r, _ := http.NewRequestWithContext(idempotency.WithKey(dead, "order-17"), http.MethodPost, "http://bank/payments", strings.NewReader("pay"))
				_, _ = (&httplock.Transport{Base: base, Tries: 1}).RoundTrip(r) //nolint:bodyclose // none
			}()
			synctest.Wait()
			isUnknown(t, "in flight under "+string(profile), post("order-17", "pay"))
			if err := post("order-17", "pay twice"); !errors.Is(err, idempotency.ErrKeyReused) || !errors.Is(err, idempotency.ErrOutcomeUnknown) {
				t.Errorf("%q: another request with a key that may have been sent before: %v; want ErrKeyReused and ErrOutcomeUnknown", profile, err)
			}
			die()
			time.Sleep(10 * time.Minute) // MaxHold ends the handler, which had marked its effect
			<-first
			isUnknown(t, "unknown under "+string(profile), post("order-17", "pay"))
		})
	}
}

// A server that dies leaves its claim for 30 s.
func TestTriesLastAsLongAsAClaimOfADeadServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		server := roundTripper(func(r *http.Request) (*http.Response, error) {
			if time.Since(begin) < 30*time.Second {
				return says(409, "type", "idempotency-in-flight", "Retry-After", "1")(r)
			}
			return says(201, "type", "answered")(r)
		})
		client := &http.Client{Transport: &httplock.Transport{Base: server}}
		if res, err := client.Post("http://bank/payments", "", nil); err != nil || res.StatusCode != 201 { //nolint:bodyclose // of the script
			t.Errorf("%v, %v after %v; want the answer after the claim has ended", res, err, time.Since(begin))
		}
		begin = time.Now().Add(time.Hour)                      // it does not end
		_, err := client.Post("http://bank/payments", "", nil) //nolint:bodyclose // none
		isUnknown(t, "in flight for ever", err)
		client.Transport.(*httplock.Transport).Tries = 2
		before := time.Now()
		_, err = client.Post("http://bank/payments", "", nil) //nolint:bodyclose // none
		if isUnknown(t, "two tries", err); time.Since(before) != time.Second {
			t.Errorf("two tries last %v; want the second after Retry-After", time.Since(before))
		}
	})
}

// idle counts how often its idle connections were closed.
type idle struct {
	http.RoundTripper
	closed int
}

func (i *idle) CloseIdleConnections() { i.closed++ }

func TestAClientClosesTheIdleConnectionsOfTheBase(t *testing.T) {
	base := &idle{}
	(&http.Client{Transport: &httplock.Transport{Base: base}}).CloseIdleConnections()
	if base.closed != 1 {
		t.Errorf("the idle connections of Base were closed %d times; want once", base.closed)
	}
	(&http.Client{Transport: &httplock.Transport{Base: roundTripper(breaks)}}).CloseIdleConnections() // has none
}
