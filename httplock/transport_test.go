package httplock_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/httplock"
	_ "github.com/interlock-go/interlock/internal/bubble"
)

// script is a server that gives each try the next of its answers, and the last one again.
type script struct {
	answers []func(*http.Request) (*http.Response, error)
	keys    []string
	bodies  []string
	at      []time.Duration // of each try
	begin   time.Time
}

func (s *script) RoundTrip(r *http.Request) (*http.Response, error) {
	if s.begin.IsZero() {
		s.begin = time.Now()
	}
	body := ""
	if r.Body != nil {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		body = string(b)
	}
	s.keys = append(s.keys, r.Header.Get("Idempotency-Key"))
	s.bodies = append(s.bodies, body)
	s.at = append(s.at, time.Since(s.begin))
	return s.answers[min(len(s.at), len(s.answers))-1](r)
}

// says answers with a status and header fields. "type" is the mark of the endpoint.
func says(status int, header ...string) func(*http.Request) (*http.Response, error) {
	return func(r *http.Request) (*http.Response, error) {
		res := &http.Response{StatusCode: status, Status: fmt.Sprint(status), Header: http.Header{}, Request: r, Body: io.NopCloser(strings.NewReader("answer"))}
		for i := 0; i < len(header); i += 2 {
			if header[i] == "type" {
				res.Header.Set(idempotency.ResultHeader, header[i+1])
				continue
			}
			res.Header.Set(header[i], header[i+1])
		}
		return res, nil
	}
}

// breaks is a connection that ends after the request was sent.
func breaks(*http.Request) (*http.Response, error) { return nil, io.ErrUnexpectedEOF }

func TestTransportSendsARequestAgainUntilItIsAnswered(t *testing.T) {
	type answers = []func(*http.Request) (*http.Response, error)
	tomorrow := time.Date(2000, 1, 2, 0, 0, 0, 0, time.UTC).Format(http.TimeFormat) // bubbles begin on 2000-01-01
	for _, c := range []struct {
		name    string
		answers answers
		tries   int
		status  int   // 0: an error
		err     error // that the error matches
		pause   time.Duration
	}{
		{"answered", answers{says(201)}, 1, 201, nil, 0},
		{"refused by the application", answers{says(422)}, 1, 422, nil, 0},
		{"a conflict of the application", answers{says(409)}, 1, 409, nil, 0},
		{"a broken connection", answers{breaks, says(201)}, 2, 201, nil, 0},
		{"in flight", answers{says(409, "type", "idempotency-in-flight", "Retry-After", "3"), says(201)}, 2, 201, nil, 3 * time.Second},
		{"in flight elsewhere", answers{says(409, "Retry-After", "2"), says(201)}, 2, 201, nil, 2 * time.Second},
		{"held", answers{says(423, "type", "held", "Retry-After", "1"), says(200)}, 2, 200, nil, time.Second},
		{"too many", answers{says(429, "Retry-After", "Sat, 01 Jan 2000 00:00:09 GMT"), says(200)}, 2, 200, nil, 9 * time.Second},
		{"unavailable", answers{says(503), says(502), says(200)}, 3, 200, nil, 0},
		{"a replay is final", answers{says(423, "Idempotent-Replayed", "true")}, 1, 423, nil, 0},
		{"a replay of a failure", answers{says(500, "Idempotent-Replayed", "true")}, 1, 0, idempotency.ErrOutcomeUnknown, 0},
		{"told to come tomorrow", answers{says(503, "type", "unavailable", "Retry-After", tomorrow)}, 1, 503, nil, 0},
		{"held for ever", answers{says(423, "type", "held")}, 8, 423, nil, 0},
		{"nothing was ever done", answers{says(503, "type", "idempotency-unavailable")}, 8, 503, nil, 0},
		{"a failure that says nothing", answers{says(500)}, 8, 0, idempotency.ErrOutcomeUnknown, 0},
		{"lost while it ran", answers{says(500, "type", "lost;ran")}, 8, 0, idempotency.ErrOutcomeUnknown, 0},
		{"silence, then held for ever", answers{breaks, says(423, "type", "held")}, 8, 0, idempotency.ErrOutcomeUnknown, 0},
		{"silence, then no right", answers{breaks, says(403)}, 3, 0, idempotency.ErrOutcomeUnknown, 0},
		{"no right", answers{says(403)}, 1, 403, nil, 0},
		{"silence for ever", answers{breaks}, 8, 0, io.ErrUnexpectedEOF, 0},
		{"the outcome is unknown", answers{says(409, "type", "idempotency-outcome-unknown")}, 1, 0, idempotency.ErrOutcomeUnknown, 0},
		{"the response was not kept", answers{says(409, "type", "idempotency-response-unavailable")}, 1, 0, idempotency.ErrResponseUnavailable, 0},
		{"silence, then a redirection to a login page", answers{breaks, says(302, "Location", "/login")}, 3, 0, idempotency.ErrOutcomeUnknown, 0},
		{"silence, then a redirection that keeps the method", answers{breaks, says(308, "Location", "/login")}, 3, 0, idempotency.ErrOutcomeUnknown, 0},
		{"silence, then a refusal of a proxy", answers{breaks, says(400)}, 3, 0, idempotency.ErrOutcomeUnknown, 0},
		{"silence, then no such route", answers{breaks, says(404)}, 3, 0, idempotency.ErrOutcomeUnknown, 0},
		{"silence, then a method that a proxy refuses", answers{breaks, says(405)}, 3, 0, idempotency.ErrOutcomeUnknown, 0},
		{"silence, then a time limit of a proxy", answers{breaks, says(408)}, 3, 0, idempotency.ErrOutcomeUnknown, 0},
		{"silence, then a limit of a proxy", answers{breaks, says(413)}, 3, 0, idempotency.ErrOutcomeUnknown, 0},
		{"silence, then another host", answers{breaks, says(421)}, 3, 0, idempotency.ErrOutcomeUnknown, 0},
		{"silence, then too early", answers{breaks, says(425)}, 3, 0, idempotency.ErrOutcomeUnknown, 0},
		{"silence, then a page in the place of a replay", answers{breaks, says(404), says(402, "Idempotent-Replayed", "true")}, 3, 402, nil, 0},
		{"silence, then an answer of the handler", answers{breaks, says(402, "type", "answered")}, 2, 402, nil, 0},
		{"silence, then not now", answers{breaks, says(409, "type", "answered")}, 3, 0, idempotency.ErrOutcomeUnknown, 0},
		{"silence, then nothing to lock", answers{breaks, says(400, "type", "bad-key")}, 2, 0, idempotency.ErrOutcomeUnknown, 0},
		{"superseded before it began", answers{says(409, "type", "superseded")}, 1, 409, nil, 0},
		{"superseded after the effect", answers{says(409, "type", "superseded;ran")}, 1, 0, core.ErrSuperseded, 0},
		{"superseded after a lost try", answers{breaks, says(409, "type", "superseded")}, 2, 0, idempotency.ErrOutcomeUnknown, 0},
		{"the key has expired", answers{says(410, "type", "idempotency-key-expired")}, 1, 0, idempotency.ErrOutcomeUnknown, 0},
		{"a coding that is not accepted", answers{says(406, "type", "idempotency-not-acceptable")}, 1, 0, idempotency.ErrResponseUnavailable, 0},
		{"a profile: the outcome is unknown", answers{says(500, "type", "idempotency-outcome-unknown")}, 1, 0, idempotency.ErrOutcomeUnknown, 0},
		{"a profile: used for another request", answers{says(409, "type", "idempotency-key-reused")}, 1, 0, idempotency.ErrKeyReused, 0},
		{"a profile: in flight", answers{says(503, "type", "idempotency-in-flight", "Retry-After", "1"), says(201)}, 2, 201, nil, time.Second},
		{"a replay behind a grpc-gateway", answers{breaks, says(404, "Grpc-Metadata-Idempotent-Replayed", "true")}, 2, 404, nil, 0},
		{"used for another request", answers{says(422, "type", "idempotency-key-reused")}, 1, 0, idempotency.ErrKeyReused, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := &script{answers: c.answers}
				var told []httplock.Try
				client := &http.Client{Transport: &httplock.Transport{Base: server, OnTry: func(try httplock.Try) { told = append(told, try) }}}
				res, err := client.Post("http://a/", "text/plain", strings.NewReader("body"))
				if err == nil {
					defer res.Body.Close()
				}
				var failed *idempotency.RequestError
				switch {
				case c.status != 0 && (err != nil || res.StatusCode != c.status):
					t.Fatalf("%v, %v; want %d", res, err, c.status)
				case c.status == 0 && (!errors.Is(err, c.err) || !errors.As(err, &failed)):
					t.Fatalf("%v, %v; want %v", res, err, c.err)
				case failed != nil && (failed.Key != server.keys[0] || failed.Tries != c.tries):
					t.Errorf("the error is %+v", failed)
				}
				if len(server.at) != c.tries || len(told) != c.tries {
					t.Fatalf("%d tries, %d told; want %d", len(server.at), len(told), c.tries)
				}
				for i, try := range told {
					last := i == c.tries-1
					if server.keys[i] != server.keys[0] || server.bodies[i] != "body" {
						t.Errorf("try %d has key %s and body %q", i, server.keys[i], server.bodies[i])
					}
					if try.Number != i+1 || (try.Pause == 0) != last || (try.Err == nil) == (try.Status == 0) || try.Request.Header.Get("Idempotency-Key") != server.keys[0] {
						t.Errorf("told of %+v", try)
					}
					if !last && server.at[i+1]-server.at[i] != try.Pause {
						t.Errorf("a pause of %v was told as %v", server.at[i+1]-server.at[i], try.Pause)
					}
				}
				if c.pause != 0 && told[0].Pause != c.pause {
					t.Errorf("a pause of %v; want %v", told[0].Pause, c.pause)
				}
			})
		})
	}
}

func TestTransportPausesLongerFromTryToTry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &script{answers: []func(*http.Request) (*http.Response, error){breaks}}
		client := &http.Client{Transport: &httplock.Transport{Base: server, Tries: 10}}
		if _, err := client.Post("http://a/", "", nil); err == nil { //nolint:bodyclose // none
			t.Fatal("answered")
		}
		most := 100 * time.Millisecond
		for i := range server.at[1:] {
			if d := server.at[i+1] - server.at[i]; d < most/2 || d > most {
				t.Errorf("pause %d lasts %v; want %v to %v", i+1, d, most/2, most)
			}
			most = min(2*most, 5*time.Second)
		}
	})
}

// A constant hint of a server that does not know does not replace the growing pause.
func TestARetryAfterIsTheLeastPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &script{answers: []func(*http.Request) (*http.Response, error){says(423, "Retry-After", "1")}}
		client := &http.Client{Transport: &httplock.Transport{Base: server, Tries: 8}}
		res, err := client.Post("http://a/", "", nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		for i := range server.at[1:] {
			least, most := time.Second, max(time.Second, min(100*time.Millisecond<<i, 5*time.Second))
			if d := server.at[i+1] - server.at[i]; d < max(least, most/2) || d > most {
				t.Errorf("pause %d lasts %v; want %v to %v", i+1, d, max(least, most/2), most)
			}
		}
	})
}

func TestTransportGivesUpAtTheEndOfTheContext(t *testing.T) {
	send := func(ctx context.Context, answer func(*http.Request) (*http.Response, error)) (*http.Response, time.Duration, error) {
		begin := time.Now()
		r, _ := http.NewRequestWithContext(ctx, http.MethodPost, "http://a/", nil)
		res, err := (&httplock.Transport{Base: &script{answers: []func(*http.Request) (*http.Response, error){answer}}}).RoundTrip(r)
		return res, time.Since(begin), err
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		// A pause beyond the deadline is not begun.
		if res, took, err := send(ctx, says(429, "Retry-After", "2")); err != nil || res.StatusCode != 429 || took != 0 { //nolint:bodyclose // of the script
			t.Errorf("%v, %v after %v", res, err, took)
		}
		gone, leave := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, leave)
		_, took, err := send(gone, says(429, "Retry-After", "2")) //nolint:bodyclose // none
		if !errors.Is(err, context.Canceled) || errors.Is(err, idempotency.ErrOutcomeUnknown) || took != time.Second {
			t.Errorf("%v after %v; nothing was carried out", err, took)
		}
		_, _, err = send(gone, breaks) //nolint:bodyclose // none
		if !errors.Is(err, idempotency.ErrOutcomeUnknown) {
			t.Errorf("%v; the try may have been carried out", err)
		}
	})
}

func TestTheIdempotencyKeyOfARequest(t *testing.T) {
	server := &script{answers: []func(*http.Request) (*http.Response, error){says(200)}}
	send := func(method, header string, ctx context.Context) (string, error) {
		r, err := http.NewRequestWithContext(ctx, method, "http://a/", nil)
		if err != nil {
			return "", err
		}
		if header != "" {
			r.Header.Set("Idempotency-Key", header)
		}
		n := len(server.keys)
		_, err = (&httplock.Transport{Base: server}).RoundTrip(r) //nolint:bodyclose // of the script
		if err != nil {
			if len(server.keys) != n {
				t.Errorf("%q was sent: %v", header, err)
			}
			return "", err
		}
		if n := len(r.Header["Idempotency-Key"]); header == "" && n != 0 {
			t.Error("the caller's request was changed")
		}
		return server.keys[n], nil
	}
	of := func(key string) context.Context { return idempotency.WithKey(t.Context(), key) }
	for _, c := range []struct {
		method, header string
		ctx            context.Context
		want           string
	}{
		{"POST", "mine", of("job"), "mine"},
		{"POST", "", of("job-7"), "job-7"},
		{"PUT", "", of("of 7, \\ and \"8\""), `"of 7, \\ and \"8\""`},
		{"GET", "", of("job"), ""},
		{"QUERY", "", t.Context(), ""},
		{"GET", "mine", t.Context(), "mine"},
	} {
		if got, err := send(c.method, c.header, c.ctx); got != c.want || err != nil {
			t.Errorf("%s %q: %q, %v; want %q", c.method, c.header, got, err, c.want)
		}
	}
	for _, bad := range []string{"", "ä", "a\n", strings.Repeat("k", 256)} {
		if _, err := send("POST", "", of(bad)); !errors.Is(err, endpoint.ErrKeyMalformed) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	for _, bad := range []string{"a, b", "ä", " "} {
		if _, err := send("POST", bad, t.Context()); !errors.Is(err, endpoint.ErrKeyMalformed) || !strings.Contains(err.Error(), "was not sent") {
			t.Errorf("header %q: %v", bad, err)
		}
	}
	first, _ := send("POST", "", t.Context())
	second, _ := send("DELETE", "", t.Context())
	version7 := regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	if !version7.MatchString(first) || !version7.MatchString(second) || first == second {
		t.Errorf("%q and %q", first, second)
	}
}

// once is a body that can be read once, of no known length.
type once struct {
	io.Reader
	closed bool
}

func (b *once) Close() error { b.closed = true; return nil }

func TestABodyThatCannotBeReadAgainIsCopiedOrRefused(t *testing.T) {
	synctest.Test(t, bodiesThatCannotBeReadAgain)
}

func bodiesThatCannotBeReadAgain(t *testing.T) {
	for _, c := range []struct {
		body   io.Reader
		length int64 // that is announced
		err    string
	}{
		{strings.NewReader("12345"), -1, ""},
		{strings.NewReader("12345"), 5, ""},
		{strings.NewReader("123456"), -1, "longer than the 5 bytes of MaxBody"},
		{failing{}, 6, "longer than the 5 bytes of MaxBody"}, // it is not read
		{io.MultiReader(strings.NewReader("1"), failing{}), -1, "reading its body: gone"},
	} {
		server := &script{answers: []func(*http.Request) (*http.Response, error){says(503), says(200)}}
		body := &once{Reader: c.body}
		r, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://a/", body)
		r.ContentLength = c.length
		_, err := (&httplock.Transport{Base: server, MaxBody: 5}).RoundTrip(r) //nolint:bodyclose // of the script
		if !body.closed {
			t.Error("the body was not closed")
		}
		switch {
		case c.err == "" && (err != nil || len(server.bodies) != 2 || server.bodies[1] != "12345"):
			t.Errorf("%v; sent %q", err, server.bodies)
		case c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err) || len(server.bodies) != 0):
			t.Errorf("%v; sent %q", err, server.bodies)
		}
	}
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("gone") }

func TestARequestThatFoundNoServerIsNotOfUnknownOutcome(t *testing.T) {
	refused := &net.OpError{Op: "dial", Err: errors.New("refused")}
	base := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return nil, refused }}
	client := &http.Client{Transport: &httplock.Transport{Base: base, Tries: 2}}
	_, err := client.Post("http://a/", "", bytes.NewReader(nil)) //nolint:bodyclose // none
	if !errors.Is(err, refused) || errors.Is(err, idempotency.ErrOutcomeUnknown) {
		t.Errorf("%v; nothing was sent", err)
	}
}
