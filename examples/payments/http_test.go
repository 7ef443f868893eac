package main

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/interlock-go/interlock/examples/payments/bank"
	"github.com/interlock-go/interlock/internal/redistest"
)

// serveTest serves an empty bank. change may alter the service beforehand.
func serveTest(t *testing.T, cfg config, change func(*service)) (url string, s *service) {
	t.Helper()
	cfg.redis = []string{redistest.Shared(t).Addr()}
	if cfg.ttl == 0 {
		cfg.ttl = 30 * time.Second
	}
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	s, err := open(t.Context(), cfg, nil, &watcher{log}, log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	if change != nil {
		change(s)
	}
	server := httptest.NewServer(routes(s))
	t.Cleanup(server.Close)
	return server.URL, s
}

// answered is a response, taken apart.
type answered struct {
	status int
	header http.Header
	body   map[string]any
	raw    string
}

func request(t *testing.T, method, url string) answered {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	a, err := send(req)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func send(req *http.Request) (answered, error) {
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return answered{}, err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return answered{}, err
	}
	a := answered{status: resp.StatusCode, header: resp.Header, raw: string(raw)}
	if len(raw) == 0 {
		return a, nil
	}
	return a, json.Unmarshal(raw, &a.body)
}

func keys(m map[string]any) []string { return slices.Sorted(maps.Keys(m)) }

func TestTheShapeOfAnswers(t *testing.T) {
	url, _ := serveTest(t, config{wait: time.Second}, nil)
	for _, c := range []struct {
		method, path string
		fields       []string
		balance      float64
	}{
		{"PUT", "/accounts/alice?balance=100", []string{"account", "balance", "token"}, 100},
		{"GET", "/accounts/alice", []string{"account", "balance"}, 100},
		{"POST", "/accounts/alice/debit?amount=30", []string{"account", "balance", "token"}, 70},
		{"POST", "/accounts/alice/debit-unsafe?amount=30", []string{"account", "balance"}, 40},
		{"PUT", "/accounts/alice?balance=0", []string{"account", "balance", "token"}, 0},
		{"PUT", "/accounts/alice?balance=1000000000000000", []string{"account", "balance", "token"}, 1e15},
	} {
		a := request(t, c.method, url+c.path)
		if a.status != http.StatusOK || a.header.Get("Content-Type") != "application/json" {
			t.Errorf("%s %s: status %d, %s", c.method, c.path, a.status, a.header.Get("Content-Type"))
		}
		if !slices.Equal(keys(a.body), c.fields) || a.body["account"] != "alice" || a.body["balance"] != c.balance {
			t.Errorf("%s %s: %s", c.method, c.path, a.raw)
		}
		if token, ok := a.body["token"]; ok && token.(float64) <= 0 {
			t.Errorf("%s %s: token %v", c.method, c.path, token)
		}
	}

	request(t, "PUT", url+"/accounts/alice?balance=100")
	request(t, "PUT", url+"/accounts/bob?balance=5")
	a := request(t, "POST", url+"/transfers/alice/bob?amount=1")
	from, _ := a.body["from"].(map[string]any)
	to, _ := a.body["to"].(map[string]any)
	if a.status != http.StatusOK || !slices.Equal(keys(a.body), []string{"from", "to", "token"}) ||
		!slices.Equal(keys(from), []string{"account", "balance"}) || !slices.Equal(keys(to), []string{"account", "balance"}) ||
		from["account"] != "alice" || from["balance"] != 99. || to["account"] != "bob" || to["balance"] != 6. {
		t.Errorf("transfer: %d %s", a.status, a.raw)
	}
}

func TestRefusedRequests(t *testing.T) {
	url, s := serveTest(t, config{wait: time.Second}, nil)
	request(t, "PUT", url+"/accounts/alice?balance=100")
	request(t, "PUT", url+"/accounts/bob?balance=100")
	// The account is somebody's who has a larger token than the next holder.
	request(t, "PUT", url+"/accounts/fenced?balance=100")
	s.rdb.HSet(t.Context(), "payments:{ledger}:account:fenced", "token", "9007199254740991")

	for path, want := range map[string]int{
		"PUT /accounts/alice":                                     400,
		"PUT /accounts/alice?balance=":                            400,
		"PUT /accounts/alice?balance=-1":                          400,
		"PUT /accounts/alice?balance=1000000000000001":            400,
		"PUT /accounts/alice?balance=99999999999999999999":        400,
		"PUT /accounts/alice?balance=1&balance=2":                 400,
		"PUT /accounts/a%2Fb?balance=1":                           400,
		"PUT /accounts/a%20b?balance=1":                           400,
		"PUT /accounts/%C3%A9?balance=1":                          400,
		"PUT /accounts/" + strings.Repeat("a", 65) + "?balance=1": 400,
		"GET /accounts/a%7Db":                                     400,
		"POST /accounts/alice/debit":                              400,
		"POST /accounts/alice/debit?amount=0":                     400,
		"POST /accounts/alice/debit?amount=1.5":                   400,
		"POST /accounts/alice/debit?amount=1000000000001":         400,
		"POST /accounts/alice/debit-unsafe?amount=-5":             400,
		"POST /transfers/alice/alice?amount=1":                    400,
		"POST /transfers/alice/b%2Fb?amount=1":                    400,
		"POST /transfers/alice/bob?amount=x":                      400,
		"POST /accounts/alice/debit?amount=101":                   402,
		"POST /accounts/alice/debit-unsafe?amount=101":            402,
		"POST /transfers/alice/bob?amount=101":                    402,
		"GET /accounts/nobody":                                    404,
		"POST /accounts/nobody/debit?amount=1":                    404,
		"POST /accounts/nobody/debit-unsafe?amount=1":             404,
		"POST /transfers/alice/nobody?amount=1":                   404,
		"POST /transfers/nobody/alice?amount=1":                   404,
		"GET /nowhere":                                            404,
		"DELETE /accounts/alice":                                  405,
		"PUT /accounts/fenced?balance=1":                          409,
		"POST /accounts/fenced/debit?amount=1":                    409,
		"POST /transfers/alice/fenced?amount=1":                   409,
	} {
		method, target, _ := strings.Cut(path, " ")
		a := request(t, method, url+target)
		if a.status != want || a.header.Get("Content-Type") != "application/problem+json" || a.body["status"] != float64(want) {
			t.Errorf("%s: %d %s %s, want %d", path, a.status, a.header.Get("Content-Type"), a.raw, want)
		}
		if strings.Contains(a.raw, "redis") || strings.Contains(a.raw, "interlock:") {
			t.Errorf("%s: the client is told internals: %s", path, a.raw)
		}
	}
	if a := request(t, "DELETE", url+"/accounts/alice"); a.header.Get("Allow") == "" {
		t.Error("405 without Allow")
	}
	for _, id := range []string{"alice", "bob", "fenced"} {
		if a := request(t, "GET", url+"/accounts/"+id); a.body["balance"] != 100. {
			t.Errorf("%s changed: %s", id, a.raw)
		}
	}
}

// Neither a request that is wrong nor one that only reads waits for a lock.
func TestOnlyChangesWaitForTheLock(t *testing.T) {
	begun, proceed := make(chan struct{}), make(chan struct{})
	url, _ := serveTest(t, config{wait: 0}, func(s *service) {
		s.bank = bank.New(s.rdb, func(context.Context) error {
			close(begun)
			<-proceed
			return nil
		})
	})
	request(t, "PUT", url+"/accounts/alice?balance=100")
	request(t, "PUT", url+"/accounts/bob?balance=100")
	result := make(chan answered, 1)
	go func() {
		req, _ := http.NewRequestWithContext(t.Context(), "POST", url+"/transfers/bob/alice?amount=1", http.NoBody)
		a, err := send(req)
		if err != nil {
			t.Error(err)
		}
		result <- a
	}()
	<-begun

	for path, want := range map[string]int{
		"PUT /accounts/alice?balance=1":        423,
		"POST /accounts/alice/debit?amount=1":  423,
		"POST /accounts/bob/debit?amount=1":    423,
		"POST /transfers/alice/bob?amount=1":   423,
		"POST /transfers/alice/carol?amount=1": 423,
		"POST /accounts/alice/debit?amount=0":  400,
		"POST /transfers/alice/alice?amount=1": 400,
		"GET /accounts/alice":                  200,
		"PUT /accounts/carol?balance=1":        200,
	} {
		method, target, _ := strings.Cut(path, " ")
		a := request(t, method, url+target)
		if a.status != want {
			t.Errorf("%s: %d %s, want %d", path, a.status, a.raw, want)
		}
		if want == 423 && (a.header.Get("Content-Type") != "application/problem+json" || a.header.Get("Retry-After") == "") {
			t.Errorf("%s: headers %v", path, a.header)
		}
	}
	close(proceed)
	if a := <-result; a.status != http.StatusOK {
		t.Errorf("the holder: %d %s", a.status, a.raw)
	}
}

func TestAnUnreachableRedisIs503(t *testing.T) {
	server := redistest.Start(t)
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	s, err := open(t.Context(), config{redis: []string{server.Addr()}, ttl: time.Second, wait: time.Second}, nil, &watcher{log}, log)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.close(context.WithoutCancel(t.Context())) }()
	front := httptest.NewServer(routes(s))
	defer front.Close()
	server.Kill()

	for _, target := range []string{"POST /accounts/alice/debit?amount=1", "POST /transfers/alice/bob?amount=1", "GET /accounts/alice"} {
		method, path, _ := strings.Cut(target, " ")
		a := request(t, method, front.URL+path)
		if a.status != http.StatusServiceUnavailable || a.header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s: %d %s", target, a.status, a.raw)
		}
	}
}
