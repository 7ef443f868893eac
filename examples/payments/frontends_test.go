package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/interlock-go/interlock/examples/payments/bank"
	"github.com/interlock-go/interlock/examples/payments/paymentspb"
	"github.com/interlock-go/interlock/internal/redistest"
)

// served is a bank in this process, with all its front ends.
type served struct {
	*service
	urls    map[string]string // of the REST front ends
	clients []client          // of all, in the order of frontends
}

// serveTest serves an empty bank. change may alter the service beforehand.
func serveTest(t *testing.T, cfg config, change func(*service)) *served {
	t.Helper()
	if len(cfg.redis) == 0 {
		cfg.redis = []string{redistest.Shared(t).Addr()}
	}
	if cfg.ttl == 0 {
		cfg.ttl = 30 * time.Second
	}
	if cfg.lease == 0 {
		cfg.lease = 30 * time.Second
	}
	if cfg.retention == 0 {
		cfg.retention = time.Hour
	}
	cfg.addr, cfg.gin, cfg.echo, cfg.grpc = anyPort, anyPort, anyPort, anyPort
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	tel, err := newTelemetry(cfg, log, t.Output())
	if err != nil {
		t.Fatal(err)
	}
	s, err := open(t.Context(), cfg, tel, nil, log)
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
	fronts, err := s.listen(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	start(fronts)
	t.Cleanup(func() {
		if err := drain(context.WithoutCancel(t.Context()), fronts); err != nil {
			t.Error(err)
		}
	})
	b := &served{service: s, urls: make(map[string]string)}
	for _, f := range fronts {
		c, hangUp, err := dial(f.name, f.addr.String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(hangUp)
		b.clients = append(b.clients, c)
		if f.name != "grpc" {
			b.urls[f.name] = "http://" + f.addr.String()
		}
	}
	return b
}

// put opens accounts with 100 each.
func (b *served) put(t *testing.T, ids ...string) {
	t.Helper()
	for i, id := range ids {
		c := b.clients[i%len(b.clients)]
		if a := settled(t.Context(), func() reply { return c.put(t.Context(), id, 100) }); !a.done() {
			t.Fatal(a.failure())
		}
	}
}

// slow makes the bank's work wait: each begins with a message on begun and ends
// with one on proceed.
func slow(begun, proceed chan struct{}) func(*service) {
	return func(s *service) {
		s.bank = bank.New(s.rdb, func(context.Context) error {
			begun <- struct{}{}
			<-proceed
			return nil
		})
	}
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
	b := serveTest(t, config{wait: time.Minute}, nil)
	for front, url := range b.urls {
		t.Run(front, func(t *testing.T) {
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
			for _, path := range []string{"/reports/alice/bob", "/reports-unsafe/alice/bob"} {
				a := request(t, "GET", url+path)
				if a.status != http.StatusOK || !slices.Equal(keys(a.body), []string{"first", "second", "sum"}) || a.body["sum"] != 105. {
					t.Errorf("%s: %d %s", path, a.status, a.raw)
				}
			}
			for _, path := range []string{"/accounts/alice/rating", "/accounts/alice/rating-unsafe"} {
				a := request(t, "GET", url+path)
				if a.status != http.StatusOK || a.body["account"] != "alice" || a.body["rating"] != "AA" {
					t.Errorf("%s: %d %s", path, a.status, a.raw)
				}
			}
			if a := request(t, "HEAD", url+"/accounts/alice"); a.status != http.StatusOK || a.raw != "" {
				t.Errorf("HEAD: %d %q", a.status, a.raw)
			}
		})
	}
}

// The fields of the messages are called as those in JSON are.
func TestTheProtoNamesWhatJSONNames(t *testing.T) {
	for message, value := range map[proto.Message]any{
		&paymentspb.Account{}:          bank.Account{},
		&paymentspb.ChangedAccount{}:   changed{},
		&paymentspb.TransferResponse{}: moved{},
		&paymentspb.ReportResponse{}:   reported{},
		&paymentspb.Rating{}:           rating{},
		&paymentspb.Payment{}:          receipt{Padding: "it is left out where it is empty"},
	} {
		raw, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		var want map[string]any
		if err := json.Unmarshal(raw, &want); err != nil {
			t.Fatal(err)
		}
		var got []string
		fields := message.ProtoReflect().Descriptor().Fields()
		for i := range fields.Len() {
			got = append(got, string(fields.Get(i).Name()))
		}
		if slices.Sort(got); !slices.Equal(got, keys(want)) {
			t.Errorf("%T has %v, JSON %v", message, got, keys(want))
		}
	}
}

// One client for all: what it is told does not depend on where it asks.
func TestAllFrontEndsDoTheSame(t *testing.T) {
	b := serveTest(t, config{wait: time.Minute}, nil)
	last := int64(0)
	for _, c := range b.clients {
		b.put(t, "alice", "bob")
		for _, other := range b.clients {
			if a := other.get(t.Context(), "alice"); !a.done() || a.account != (bank.Account{ID: "alice", Balance: 100}) {
				t.Errorf("get through %s: %+v", other.frontend(), a)
			}
		}
		a := c.debit(t.Context(), "alice", 30)
		if !a.done() || a.account != (bank.Account{ID: "alice", Balance: 70}) || a.token <= last {
			t.Errorf("debit through %s: %+v, want a token above %d", c.frontend(), a, last)
		}
		last = a.token
		a = c.transfer(t.Context(), "bob", "alice", 1)
		if !a.done() || a.account != (bank.Account{ID: "bob", Balance: 99}) || a.to != (bank.Account{ID: "alice", Balance: 71}) || a.token <= 0 {
			t.Errorf("transfer through %s: %+v", c.frontend(), a)
		}
	}
}

// fence gives an account to somebody with a larger token than any next holder.
func (b *served) fence(t *testing.T, id string) {
	t.Helper()
	b.rdb.HSet(t.Context(), "payments:{ledger}:account:"+id, "fence", "9007199254740991")
}

func TestRefusedRequests(t *testing.T) {
	b := serveTest(t, config{wait: time.Minute}, nil)
	b.put(t, "alice", "bob", "fenced")
	b.fence(t, "fenced")

	for path, want := range map[string]int{
		"PUT /accounts/alice":                                     400,
		"PUT /accounts/alice?balance=":                            400,
		"PUT /accounts/alice?balance=-1":                          400,
		"PUT /accounts/alice?balance=1000000000000001":            400,
		"PUT /accounts/alice?balance=99999999999999999999":        400,
		"PUT /accounts/alice?balance=1&balance=2":                 400,
		"PUT /accounts/a%2Fb?balance=1":                           400,
		"PUT /accounts/a%20b?balance=1":                           400,
		"PUT /accounts/a+b?balance=1":                             400,
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
		"GET /reports/alice/alice":                                400,
		"GET /reports/alice/b%2Fb":                                400,
		"GET /accounts/a%20b/rating":                              400,
		"POST /accounts/alice/debit?amount=101":                   402,
		"POST /accounts/alice/debit-unsafe?amount=101":            402,
		"POST /transfers/alice/bob?amount=101":                    402,
		"GET /accounts/nobody":                                    404,
		"POST /accounts/nobody/debit?amount=1":                    404,
		"POST /accounts/nobody/debit-unsafe?amount=1":             404,
		"POST /transfers/alice/nobody?amount=1":                   404,
		"POST /transfers/nobody/alice?amount=1":                   404,
		"GET /reports/alice/nobody":                               404,
		"GET /reports/nobody/alice":                               404,
		"GET /nowhere":                                            404,
		"GET /accounts/alice/":                                    404,
		"DELETE /accounts/alice":                                  405,
		"PUT /accounts/fenced?balance=1":                          409,
		"POST /accounts/fenced/debit?amount=1":                    409,
		"POST /transfers/alice/fenced?amount=1":                   409,
	} {
		method, target, _ := strings.Cut(path, " ")
		bodies := make(map[string]string) // and where they came from
		for front, url := range b.urls {
			a := request(t, method, url+target)
			if a.status != want || a.header.Get("Content-Type") != "application/problem+json" || a.body["status"] != float64(want) {
				t.Errorf("%s: %s: %d %s %s, want %d", front, path, a.status, a.header.Get("Content-Type"), a.raw, want)
			}
			if strings.Contains(a.raw, "redis") || strings.Contains(a.raw, "interlock:") {
				t.Errorf("%s: %s: the client is told internals: %s", front, path, a.raw)
			}
			if want == http.StatusMethodNotAllowed && a.header.Get("Allow") == "" {
				t.Errorf("%s: 405 without Allow", front)
			}
			bodies[a.raw] = front
		}
		if len(bodies) != 1 {
			t.Errorf("%s: the bodies differ: %v", path, bodies)
		}
	}
	for _, id := range []string{"alice", "bob", "fenced"} {
		if a := b.clients[0].get(t.Context(), id); a.account.Balance != 100 {
			t.Errorf("%s changed: %+v", id, a)
		}
	}
}

func TestRefusedCalls(t *testing.T) {
	b := serveTest(t, config{wait: time.Minute}, nil)
	b.put(t, "alice", "bob", "fenced")
	b.fence(t, "fenced")
	ctx := t.Context()
	all := map[string]client{}
	for _, c := range b.clients {
		all[c.frontend()] = c
	}

	for _, c := range []struct {
		what   string
		code   codes.Code
		reason string
		call   func(client) reply
	}{
		{"no name for an account", codes.InvalidArgument, "invalid-request", func(c client) reply { return c.debit(ctx, "a%20b", 1) }},
		{"negative balance", codes.InvalidArgument, "invalid-request", func(c client) reply { return c.put(ctx, "alice", -1) }},
		{"balance above the limit", codes.InvalidArgument, "invalid-request", func(c client) reply { return c.put(ctx, "alice", bank.MaxBalance+1) }},
		{"nothing", codes.InvalidArgument, "invalid-request", func(c client) reply { return c.debit(ctx, "alice", 0) }},
		{"amount above the limit", codes.InvalidArgument, "invalid-request", func(c client) reply { return c.transfer(ctx, "alice", "bob", bank.MaxAmount+1) }},
		{"to itself", codes.InvalidArgument, "invalid-request", func(c client) reply { return c.transfer(ctx, "alice", "alice", 1) }},
		{"malformed", codes.InvalidArgument, "invalid-request", func(c client) reply { return c.get(ctx, strings.Repeat("a", 65)) }},
		{"debit of nobody", codes.NotFound, "unknown-account", func(c client) reply { return c.debit(ctx, "nobody", 1) }},
		{"transfer to nobody", codes.NotFound, "unknown-account", func(c client) reply { return c.transfer(ctx, "alice", "nobody", 1) }},
		{"report of one account", codes.InvalidArgument, "invalid-request", func(c client) reply { return c.report(ctx, "alice", "alice") }},
		{"rating of a malformed one", codes.InvalidArgument, "invalid-request", func(c client) reply { return c.rate(ctx, "a%20b") }},
		{"report of nobody", codes.NotFound, "unknown-account", func(c client) reply { return c.report(ctx, "alice", "nobody") }},
		{"get nobody", codes.NotFound, "unknown-account", func(c client) reply { return c.get(ctx, "nobody") }},
		{"too much", codes.FailedPrecondition, "insufficient-funds", func(c client) reply { return c.debit(ctx, "alice", 101) }},
		{"transfer of too much", codes.FailedPrecondition, "insufficient-funds", func(c client) reply { return c.transfer(ctx, "alice", "bob", 101) }},
		{"fenced off", codes.Aborted, "stale-token", func(c client) reply { return c.debit(ctx, "fenced", 1) }},
		{"put of a fenced one", codes.Aborted, "stale-token", func(c client) reply { return c.put(ctx, "fenced", 1) }},
		{"transfer to a fenced one", codes.Aborted, "stale-token", func(c client) reply { return c.transfer(ctx, "alice", "fenced", 1) }},
	} {
		for front, client := range all {
			a := c.call(client)
			if a.reason != c.reason {
				t.Errorf("%s: %s: %v, want %s", front, c.what, a.failure(), c.reason)
			}
			if front != "grpc" {
				continue
			}
			if st := status.Convert(a.err); st.Code() != c.code || strings.Contains(st.Message(), "interlock") || strings.Contains(st.Message(), "redis") {
				t.Errorf("%s: %v, want %v", c.what, st, c.code)
			}
		}
	}
	// What a message leaves out is refused too, before any lock is asked for.
	rpc := all["grpc"].(rpcClient)
	if _, err := rpc.Debit(ctx, &paymentspb.DebitRequest{}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("an empty message: %v", err)
	}
}

// The same key: whoever comes second, by whichever way, waits for the first.
func TestADebitWaitsForTheDebitOfAnyFrontEnd(t *testing.T) {
	begun, proceed := make(chan struct{}), make(chan struct{})
	b := serveTest(t, config{wait: time.Minute}, slow(begun, proceed))
	b.put(t, "alice", "bob")
	want := int64(100)
	for _, first := range b.clients {
		for _, second := range b.clients {
			name := second.frontend() + " for " + first.frontend()
			one, two := make(chan reply, 1), make(chan reply, 1)
			go func() { one <- first.debit(t.Context(), "alice", 1) }()
			<-begun
			go func() { two <- second.transfer(t.Context(), "alice", "bob", 1) }()
			redistest.Eventually(t, time.Minute, func(context.Context) error {
				for _, h := range b.locker.Held() {
					if h.Key == "account/alice" && h.Waiters == 1 {
						return nil
					}
				}
				return fmt.Errorf("%s: nobody waits: %+v", name, b.locker.Held())
			})
			proceed <- struct{}{}
			<-begun // the second's
			a := <-one
			proceed <- struct{}{}
			c := <-two
			if !a.done() || !c.done() || a.account.Balance != want-1 || c.account.Balance != want-2 || c.token <= a.token {
				t.Fatalf("%s: %+v, then %+v", name, a, c)
			}
			want -= 2
		}
	}
}

// Neither a request that is wrong nor one that only reads waits for a lock.
func TestOnlyChangesWaitForTheLock(t *testing.T) {
	begun, proceed := make(chan struct{}), make(chan struct{})
	b := serveTest(t, config{wait: 0}, slow(begun, proceed))
	b.put(t, "alice", "bob")
	for _, holder := range b.clients {
		result := make(chan reply, 1)
		// Redis may have no time for those that do not wait: they are sent again then.
		ctx := t.Context()
		unavailable := func(a reply) bool { return a.reason == "unavailable" } // slow was not entered
		go func() {
			transfer := func() reply { return holder.transfer(ctx, "bob", "alice", 1) }
			result <- persist(ctx, time.Now().Add(time.Minute), transfer, unavailable)
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
			"GET /reports/alice/carol":             423,
			"GET /accounts/alice":                  200,
			"PUT /accounts/carol?balance=1":        200,
		} {
			method, target, _ := strings.Cut(path, " ")
			for front, url := range b.urls {
				a := request(t, method, url+target)
				for end := time.Now().Add(time.Minute); a.status == 503 && time.Now().Before(end); {
					a = request(t, method, url+target)
				}
				if a.status != want {
					t.Errorf("%s: %s: %d %s, want %d", front, path, a.status, a.raw, want)
				}
				if want == 423 && (a.header.Get("Content-Type") != "application/problem+json" || a.header.Get("Retry-After") == "") {
					t.Errorf("%s: %s: headers %v", front, path, a.header)
				}
			}
		}
		for _, c := range b.clients {
			for what, try := range map[string]struct {
				reason string
				call   func() reply
			}{
				"put":               {"held", func() reply { return c.put(ctx, "alice", 1) }},
				"debit":             {"held", func() reply { return c.debit(ctx, "bob", 1) }},
				"transfer":          {"held", func() reply { return c.transfer(ctx, "alice", "bob", 1) }},
				"malformed":         {"invalid-request", func() reply { return c.debit(ctx, "alice", 0) }},
				"read":              {"", func() reply { return c.get(ctx, "alice") }},
				"of another":        {"", func() reply { return c.put(ctx, "carol", 1) }},
				"transfer to third": {"held", func() reply { return c.transfer(ctx, "alice", "carol", 1) }},
			} {
				a := settled(ctx, try.call)
				if a.reason != try.reason {
					t.Errorf("%s through %s: %v, want %q", what, c.frontend(), a.failure(), try.reason)
				}
				if _, rpc := c.(rpcClient); rpc && try.reason == "held" && status.Code(a.err) != codes.Aborted {
					t.Errorf("%s: %v, want ABORTED", what, a.err)
				}
			}
		}
		proceed <- struct{}{}
		if a := <-result; !a.done() {
			t.Errorf("the holder through %s: %v", holder.frontend(), a.failure())
		}
	}
}

func TestAnUnreachableRedisIsSaidSo(t *testing.T) {
	server := redistest.Start(t)
	b := serveTest(t, config{redis: []string{server.Addr()}, ttl: time.Second, wait: time.Second}, nil)
	server.Kill()

	var wg sync.WaitGroup // side by side, since every try is repeated for a while
	for _, c := range b.clients {
		wg.Go(func() {
			for what, call := range map[string]struct {
				reason string
				reply
			}{
				"debit":    {"unavailable", c.debit(t.Context(), "alice", 1)},
				"transfer": {"unavailable", c.transfer(t.Context(), "alice", "bob", 1)},
				"get":      {"ledger-unavailable", c.get(t.Context(), "alice")},
			} {
				if call.reply.reason != call.reason {
					t.Errorf("%s through %s: %v, want %q", what, c.frontend(), call.failure(), call.reason)
				}
				if _, rpc := c.(rpcClient); rpc && status.Code(call.err) != codes.Unavailable {
					t.Errorf("%s: %v, want UNAVAILABLE", what, call.err)
				}
			}
		})
	}
	wg.Wait()
	for front, url := range b.urls {
		a := request(t, "POST", url+"/accounts/alice/debit?amount=1")
		if a.status != http.StatusServiceUnavailable || a.header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s: %d %s", front, a.status, a.raw)
		}
	}
}

func TestHTTP2Clients(t *testing.T) {
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(transport.CloseIdleConnections) // after the drain, which must not wait for them
	b := serveTest(t, config{wait: time.Minute}, nil)
	b.put(t, "alice")
	h2 := http.Client{Transport: transport}

	const each = 20
	var wg sync.WaitGroup
	for front, url := range b.urls {
		for range each {
			wg.Go(func() {
				resp, err := h2.Post(url+"/accounts/alice/debit?amount=1", "", nil)
				if err != nil {
					t.Error(err)
					return
				}
				defer resp.Body.Close()
				if resp.ProtoMajor != 2 || resp.StatusCode != http.StatusOK {
					t.Errorf("%s: %s %s", front, resp.Proto, resp.Status)
				}
			})
		}
	}
	wg.Wait()
	if a := b.clients[0].get(t.Context(), "alice"); a.account.Balance != 100-int64(each*len(b.urls)) {
		t.Errorf("balance %d", a.account.Balance)
	}
}

func TestAPanicInACallDoesNotEndTheProcess(t *testing.T) {
	b := serveTest(t, config{wait: time.Minute}, func(s *service) {
		s.bank = bank.New(s.rdb, func(context.Context) error { panic("of the bank") })
	})
	b.put(t, "alice")
	rpc := b.clients[len(b.clients)-1]
	for range 2 { // the second finds the lock free
		a := rpc.debit(t.Context(), "alice", 1)
		if st := status.Convert(a.err); st.Code() != codes.Internal || st.Message() != "internal error" {
			t.Errorf("%v", a.err)
		}
	}
}
