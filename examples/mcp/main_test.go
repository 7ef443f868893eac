package main

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"

	"github.com/interlock-go/interlock/examples/internal/servicetest"
	"github.com/interlock-go/interlock/mcplock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bearer is the transport of a client with a token.
type bearer struct {
	*http.Transport
	token string
}

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.token)
	return b.Transport.RoundTrip(r)
}

func TestService(t *testing.T) {
	addr := servicetest.Start(t, run)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	dial := func(token string) (*mcp.ClientSession, error) {
		transport := &http.Transport{}
		t.Cleanup(transport.CloseIdleConnections)
		return mcp.NewClient(&mcp.Implementation{Name: "agent"}, nil).Connect(ctx, &mcp.StreamableClientTransport{
			Endpoint: "http://" + addr, HTTPClient: &http.Client{Transport: bearer{transport, token}}, MaxRetries: -1,
		}, nil)
	}
	if _, err := dial("none"); err == nil {
		t.Error("a client without a token is served")
	}
	agents := map[string]*mcp.ClientSession{}
	for _, name := range []string{"alice", "bob"} {
		agent, err := dial("secret-of-" + name)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = agent.Close() }()
		agents[name] = agent
	}
	for _, c := range []struct {
		agent, account, key, want string
		replayed                  bool
	}{
		{"alice", "1", "k", "map[balance:-1]", false},
		{"alice", "1", "k", "map[balance:-1]", true},
		{"bob", "1", "k", "map[balance:-2]", false},
		{"alice", "2", "k", "idempotency-key-reused", false},
		{"alice", "1", "", "idempotency-key-missing", false},
		{"alice", "one", "k2", "bad-key", false},
	} {
		params := &mcp.CallToolParams{Name: "debit", Arguments: debit{AccountID: c.account, Key: c.key}}
		result, err := agents[c.agent].CallTool(ctx, params)
		if err != nil {
			t.Fatal(err)
		}
		got := fmt.Sprint(result.StructuredContent, result.Meta[mcplock.MetaRefusal])
		if !strings.Contains(got, c.want) || (result.Meta[mcplock.MetaReplayed] == true) != c.replayed {
			t.Errorf("%+v: %s, replayed %v", c, got, result.Meta[mcplock.MetaReplayed])
		}
	}
}
