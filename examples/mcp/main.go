// Command mcp is a complete server of tools for agents (Model Context Protocol over
// stateless HTTP), with authentication and a graceful end. Its tool debits an account:
// debits of one account run one after the other, and a debit runs once for each idempotency
// key. Processes of this command on one Redis, with different -addr, serve one bank.
package main

import (
	"context"
	"errors"
	"flag"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/examples/internal/bank"
	"github.com/interlock-go/interlock/mcplock"
)

var (
	addr      = flag.String("addr", "localhost:8080", "where to listen")
	redisAddr = flag.String("redis", "localhost:6379", "Redis to use")
	lease     = flag.Duration("lease", 30*time.Second, "how long a process that died keeps others waiting")
	limit     = flag.Duration("limit", 10*time.Second, "how long a client may take to send its request")
	work      = flag.Duration("work", 0, "how long the bank thinks about each request")
)

func main() {
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	listener, err := net.Listen("tcp", *addr)
	if err != nil {
		log.Fatal(err)
	}
	if err := run(listener, ctx.Done()); err != nil {
		log.Fatal(err)
	}
}

// run serves until the process receives a signal to stop.
func run(listener net.Listener, stop <-chan struct{}) error {
	rdb := redis.NewClient(&redis.Options{Addr: *redisAddr, ContextTimeoutEnabled: true, MaxRetries: -1})
	store, err := redisstore.New(rdb)
	if err != nil {
		return err
	}
	locker, err := core.New(store, core.Watchdog(*lease))
	if err != nil {
		return err
	}
	engine, err := idempotency.New(store, idempotency.Lease(*lease), idempotency.Scope(mcplock.User))
	if err != nil {
		return err
	}

	perAccount := core.Serialize(locker, "account/{arg.account_id:int}")
	server := mcp.NewServer(&mcp.Implementation{Name: "bank", Version: "v1.0.0"}, nil)
	tools := mcplock.Tools{"debit": engine.With(idempotency.Under(perAccount))}
	tool := &mcp.Tool{Name: "debit", Description: "Debits an account by one."}
	mcp.AddTool(server, tool, service{bank.Bank{Redis: rdb, Work: *work}}.debit)
	if err := mcplock.Protect(context.Background(), server, nil, tools); err != nil {
		return err
	}

	handler := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server },
		&mcp.StreamableHTTPOptions{Stateless: true, PropagateRequestCancellation: true})
	web := &http.Server{Handler: auth.RequireBearerToken(verify, nil)(handler), ReadTimeout: *limit}
	failed := make(chan error, 1)
	go func() { failed <- web.Serve(listener) }()
	select {
	case err = <-failed:
	case <-stop:
	}
	return errors.Join(err, // in this order, each with a time limit of its own
		within(time.Minute, web.Shutdown),
		within(time.Minute, engine.Close),
		within(*limit, locker.Close),
		store.Close(),
		rdb.Close())
}

// within calls f with a context that ends after that time.
func within(d time.Duration, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	return f(ctx)
}

type service struct{ bank bank.Bank }

type debit struct {
	AccountID string `json:"account_id"`
	Key       string `json:"idempotency_key,omitempty" jsonschema:"a new one for each debit, the same when you repeat it"`
}

type balance struct {
	Balance int64 `json:"balance"`
}

func (s service) debit(ctx context.Context, _ *mcp.CallToolRequest, in debit) (*mcp.CallToolResult, balance, error) {
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
