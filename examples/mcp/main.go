// Command mcp is a complete server of tools for agents (Model Context Protocol over
// stateless HTTP), with authentication and a graceful end. Its tool debits an account:
// debits of one account run one after the other, and a debit runs once for each idempotency
// key. Processes of this command on one Redis, with different -addr, serve one bank;
// examples/internal/service connects and closes it.
package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/examples/internal/bank"
	"github.com/interlock-go/interlock/examples/internal/service"
	"github.com/interlock-go/interlock/mcplock"
)

func main() { service.Main("localhost:8080", run) }

// run serves until the process receives a signal to stop.
func run(listener net.Listener, stop <-chan struct{}) error {
	parts, err := service.Open(mcplock.User)
	if err != nil {
		return err
	}
	perAccount := core.Serialize(parts.Locker, "account/{arg.account_id:int}")
	server := mcp.NewServer(&mcp.Implementation{Name: "bank", Version: "v1.0.0"}, nil)
	once := mcplock.Tools{"debit": parts.Engine.With(idempotency.Under(perAccount))}
	tool := &mcp.Tool{Name: "debit", Description: "Debits an account by one."}
	mcp.AddTool(server, tool, tools{parts.Bank}.debit)
	if err := mcplock.Protect(context.Background(), server, nil, once); err != nil {
		return err
	}

	handler := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server },
		&mcp.StreamableHTTPOptions{Stateless: true, PropagateRequestCancellation: true})
	web := &http.Server{Handler: auth.RequireBearerToken(verify, nil)(handler), ReadTimeout: *service.Limit}
	return parts.Serve(stop, func() error { return web.Serve(listener) }, web.Shutdown)
}

type tools struct{ bank bank.Bank }

type debit struct {
	AccountID string `json:"account_id"`
	Key       string `json:"idempotency_key,omitempty" jsonschema:"a new one for each debit, the same when you repeat it"`
}

type balance struct {
	Balance int64 `json:"balance"`
}

func (s tools) debit(ctx context.Context, _ *mcp.CallToolRequest, in debit) (*mcp.CallToolResult, balance, error) {
	// After the mark, no call repeats a debit with the same key, even if this process
	// dies.
	if err := idempotency.MarkEffect(ctx); err != nil {
		return nil, balance{}, errors.New("not now")
	}
	left, err := s.bank.Debit(ctx, in.AccountID)
	if err != nil {
		return nil, balance{}, errors.New("the bank has failed")
	}
	return nil, balance{left}, nil
}

// verify says which user a token belongs to.
func verify(_ context.Context, token string, _ *http.Request) (*auth.TokenInfo, error) {
	users := map[string]string{"secret-of-alice": "alice", "secret-of-bob": "bob"}
	if users[token] == "" {
		return nil, auth.ErrInvalidToken
	}
	return &auth.TokenInfo{UserID: users[token], Expiration: time.Now().Add(time.Hour)}, nil
}
