package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/interlock-go/interlock/examples/payments/bank"
	"github.com/interlock-go/interlock/examples/payments/paymentspb"
)

// What a client is told does not depend on where it asks.
func TestAllFrontEndsDoTheSame(t *testing.T) {
	t.Parallel()
	b := serveTest(t, asIs, ready)
	last := int64(0)
	for _, c := range b.clients {
		b.put("alice", "bob")
		b.wantBalance("alice", 100)
		d := b.want("", c, &paymentspb.DebitRequest{Account: "alice", Amount: 30}).(*paymentspb.ChangedAccount)
		if d.GetAccount() != "alice" || d.GetBalance() != 70 || d.GetToken() <= last {
			t.Errorf("debit through %s: %v, want a token above %d", c.frontend, d, last)
		}
		last = d.GetToken()
		m := b.want("", c, &paymentspb.TransferRequest{From: "bob", To: "alice", Amount: 1}).(*paymentspb.TransferResponse)
		if m.GetFrom().GetAccount() != "bob" || m.GetFrom().GetBalance() != 99 || m.GetTo().GetBalance() != 71 || m.GetToken() <= 0 {
			t.Errorf("transfer through %s: %v", c.frontend, m)
		}
		if r := b.want("", c, &paymentspb.ReportRequest{First: "alice", Second: "bob"}).(*paymentspb.ReportResponse); r.GetSum() != 170 {
			t.Errorf("report through %s: %v", c.frontend, r)
		}
		if r := b.want("", c, &paymentspb.RateRequest{Account: "alice"}).(*paymentspb.Rating); r.GetRating() != "AA" || r.GetAccount() != "alice" {
			t.Errorf("rating through %s: %v", c.frontend, r)
		}
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	b := serveTest(t, asIs, ready)
	b.put("alice", "bob", "fenced")
	// Another holder has a larger token than the next holder here.
	b.rdb.HSet(t.Context(), "payments:{ledger}:account:fenced", "fence", "9007199254740991")
	for _, c := range []struct {
		reason  string
		status  string // of HTTP
		code    codes.Code
		request any
	}{
		{"invalid-request", "400", codes.InvalidArgument, &paymentspb.PutAccountRequest{Account: "alice", Balance: -1}},
		{"invalid-request", "400", codes.InvalidArgument, &paymentspb.DebitRequest{Account: "a%20b", Amount: 1}},
		{"invalid-request", "400", codes.InvalidArgument, &paymentspb.DebitRequest{Account: "alice"}},
		{"invalid-request", "400", codes.InvalidArgument, &paymentspb.TransferRequest{From: "alice", To: "bob", Amount: bank.MaxAmount + 1}},
		{"invalid-request", "400", codes.InvalidArgument, &paymentspb.TransferRequest{From: "alice", To: "alice", Amount: 1}},
		{"invalid-request", "400", codes.InvalidArgument, &paymentspb.ReportRequest{First: "alice", Second: "alice"}},
		{"invalid-request", "400", codes.InvalidArgument, &paymentspb.RateRequest{Account: strings.Repeat("a", 65)}},
		{"unknown-account", "404", codes.NotFound, &paymentspb.GetAccountRequest{Account: "unknown"}},
		{"unknown-account", "404", codes.NotFound, &paymentspb.ReportRequest{First: "alice", Second: "unknown"}},
		{"insufficient-funds", "402", codes.FailedPrecondition, &paymentspb.DebitRequest{Account: "alice", Amount: 101}},
		{"stale-token", "409", codes.Aborted, &paymentspb.PutAccountRequest{Account: "fenced"}},
		{"stale-token", "409", codes.Aborted, &paymentspb.TransferRequest{From: "alice", To: "fenced", Amount: 1}},
		{"unauthenticated", "401", codes.Unauthenticated, &paymentspb.PayRequest{Account: "alice", Amount: 1}},
	} {
		for _, client := range b.clients {
			_, err := do(t.Context(), client, c.request)
			st := status.Convert(err)
			if reasonOf(err) != c.reason || client.frontend == "grpc" && st.Code() != c.code || client.frontend != "grpc" && !strings.HasPrefix(st.Message(), c.status) {
				t.Errorf("%T %v through %s: %v, want %s", c.request, c.request, client.frontend, err, c.reason)
			}
			if strings.Contains(st.Message(), "redis") || strings.Contains(st.Message(), "interlock") {
				t.Errorf("the client is told internals: %v", st)
			}
		}
	}
	for _, id := range []string{"alice", "bob", "fenced"} {
		b.wantBalance(id, 100)
	}
	for _, front := range frontends[:3] {
		for path, want := range map[string]int{"/accounts/alice?balance=x": 400, "/payments": 401, "/nowhere": 404} {
			method := map[bool]string{true: http.MethodPut, false: http.MethodPost}[want == 400]
			r, err := http.NewRequestWithContext(t.Context(), method, b.urls[front]+path, strings.NewReader(`{`))
			if err != nil {
				t.Fatal(err)
			}
			resp, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			if _ = resp.Body.Close(); resp.StatusCode != want {
				t.Errorf("%s: %s: %d, want %d", front, path, resp.StatusCode, want)
			}
		}
	}
	http.DefaultClient.CloseIdleConnections()
}

// The same key: the second waits for the first, in all protocols.
func TestATransferWaitsForTheDebitOfAnyFrontEnd(t *testing.T) {
	t.Parallel()
	begun, proceed := make(chan struct{}), make(chan struct{})
	b := serveTest(t, asIs, slow(begun, proceed))
	b.put("alice", "bob")
	for i, first := range b.clients {
		second := b.clients[(i+1)%len(b.clients)]
		one := later(t.Context(), first, &paymentspb.DebitRequest{Account: "alice", Amount: 1})
		<-begun
		two := later(t.Context(), second, &paymentspb.TransferRequest{From: "bob", To: "alice", Amount: 1})
		b.waits("alice", 1)
		proceed <- struct{}{}
		<-begun // the second's
		if err := <-one; err != nil {
			t.Errorf("%s: %v", first.frontend, err)
		}
		proceed <- struct{}{}
		if err := <-two; err != nil {
			t.Errorf("%s behind %s: %v", second.frontend, first.frontend, err)
		}
	}
	b.wantBalance("alice", 100)
	b.wantBalance("bob", 96)
}

func TestReportsOfAllFrontEndsRunTogetherAndExcludeChanges(t *testing.T) {
	t.Parallel()
	begun, proceed := make(chan struct{}), make(chan struct{})
	b := serveTest(t, noWait, slow(begun, proceed))
	b.put("alice", "bob")
	var reports []<-chan error
	for _, c := range b.clients {
		reports = append(reports, later(t.Context(), c, &paymentspb.ReportRequest{First: "alice", Second: "bob"}))
	}
	for range reports {
		<-begun // all are under way
	}
	for _, c := range b.clients {
		b.want("held", c, &paymentspb.PutAccountRequest{Account: "alice", Balance: 1})
		b.want("held", c, &paymentspb.DebitRequest{Account: "bob", Amount: 1})
		b.want("held", c, &paymentspb.TransferRequest{From: "bob", To: "alice", Amount: 1})
		b.want("invalid-request", c, &paymentspb.DebitRequest{Account: "bob"}) // before it asks for the lock
	}
	b.wantBalance("alice", 100)
	for range reports {
		proceed <- struct{}{}
	}
	for i, r := range reports {
		if err := <-r; err != nil {
			t.Errorf("the report through %s: %v", frontends[i], err)
		}
	}
	if most, _ := b.reporting.reset(); most != len(frontends) {
		t.Errorf("%d reports at once, want all %d", most, len(frontends))
	}
}

// The partner's calls wait until the gate is opened, and end when their caller leaves.
func TestARatingWithoutAPermitIsRefused(t *testing.T) {
	t.Parallel()
	gate, under := make(chan struct{}), make(chan struct{})
	open := sync.OnceFunc(func() { close(gate) })
	defer open()
	away := httptest.NewServer(http.NotFoundHandler())
	away.Close()
	partner := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		under <- struct{}{}
		select {
		case <-gate:
		case <-r.Context().Done():
		}
		_, _ = w.Write([]byte(`{"rating":"AA"}`))
	}))
	defer partner.Close()
	b := serveTest(t, func(c *config) { c.wait, c.partner = 0, partner.URL }, ready)
	var taken []<-chan error
	for _, c := range b.clients[:partnerLimit] {
		taken = append(taken, later(t.Context(), c, &paymentspb.RateRequest{Account: "alice"}))
		<-under
	}
	for _, c := range b.clients {
		b.want("full", c, &paymentspb.RateRequest{Account: "bob"})
	}
	open()
	for _, done := range taken {
		if err := <-done; err != nil {
			t.Errorf("a rating with a permit: %v", err)
		}
	}
	b.partner.base = away.URL
	for _, c := range b.clients {
		b.want("partner-unavailable", c, &paymentspb.RateRequest{Account: "bob"})
	}
}
