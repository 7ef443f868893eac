package main

import (
	"net/http"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/interlock-go/interlock/examples/payments/bank"
	"github.com/interlock-go/interlock/examples/payments/paymentspb"
)

// The answer to a client does not depend on the front end.
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
		{"insufficient-funds", "403", codes.FailedPrecondition, &paymentspb.DebitRequest{Account: "alice", Amount: 101}},
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
