package mcplock_test

import (
	"context"
	"fmt"
	"log"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/mcplock"
)

// payment is the input of the example's tool.
type payment struct {
	AccountID int    `json:"account_id"`
	Amount    int    `json:"amount"`
	Key       string `json:"idempotency_key" jsonschema:"a new one for each payment, the same when you repeat it"`
}

// An agent that did not get the answer to its payment repeats the call.
func Example() {
	ctx := context.Background()
	store := memstore.New() // in production: a redisstore
	locker, err := core.New(store)
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close(ctx)
	engine, err := idempotency.New(store, idempotency.Global())
	if err != nil {
		log.Fatal(err)
	}
	defer engine.Close(ctx)

	server := mcp.NewServer(&mcp.Implementation{Name: "bank"}, nil)
	perAccount := core.Serialize(locker, "account/{arg.account_id}")
	balance := 100
	mcp.AddTool(server, &mcp.Tool{Name: "pay"}, func(ctx context.Context, _ *mcp.CallToolRequest, p payment) (*mcp.CallToolResult, any, error) {
		balance -= p.Amount
		text := fmt.Sprintf("paid under the lock of %s, %d are left", core.LeaseFromContext(ctx).Key(), balance)
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}}, nil, nil
	})

	tools := mcplock.Tools{"pay": engine.With(idempotency.Under(perAccount))}
	if err := mcplock.Protect(ctx, server, nil, tools); err != nil {
		log.Fatal(err)
	}

	near, far := mcp.NewInMemoryTransports()
	if _, err := server.Connect(ctx, far, nil); err != nil {
		log.Fatal(err)
	}
	agent, err := mcp.NewClient(&mcp.Implementation{Name: "agent"}, nil).Connect(ctx, near, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer agent.Close()
	for _, p := range []payment{{42, 30, "rent-november"}, {42, 30, "rent-november"}, {42, 99, "rent-november"}} {
		result, err := agent.CallTool(ctx, &mcp.CallToolParams{Name: "pay", Arguments: p})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(result.Content[0].(*mcp.TextContent).Text)
		fmt.Println("replayed:", result.Meta[mcplock.MetaReplayed] == true)
	}
	// Output:
	// paid under the lock of account/42, 70 are left
	// replayed: false
	// paid under the lock of account/42, 70 are left
	// replayed: true
	// The idempotency key was used for another request. Nothing was done. For the answer to the first request, repeat that request exactly. For another request, make a new key.
	// replayed: false
}

// A rule for a tool that the server does not have would protect nothing.
func ExampleProtect() {
	locker, err := core.New(memstore.New())
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close(context.Background())
	server := mcp.NewServer(&mcp.Implementation{Name: "bank"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "pay"}, func(context.Context, *mcp.CallToolRequest, payment) (*mcp.CallToolResult, any, error) {
		return nil, nil, nil
	})
	rules := mcplock.Rules{"Pay": core.Serialize(locker, "account/{arg.account_id}")}
	fmt.Println(mcplock.Protect(context.Background(), server, rules, nil))
	// Output:
	// interlock: bad configuration: tool "Pay": the server has no such tool, only ["pay"]
}

// The code of the package comment, and of the README, that stands in no Example.
func _(ctx context.Context, locker *core.Locker, store idempotency.Store) error {
	debit := core.Serialize(locker, "account/{arg.account_id}")
	engine, err := idempotency.New(store, idempotency.Scope(mcplock.User))
	if err != nil {
		return err
	}
	server := mcp.NewServer(&mcp.Implementation{Name: "bank", Version: "v1.0.0"}, nil)
	once, alone := mcplock.Tools{"pay": engine.With(idempotency.Under(debit))}, mcplock.Rules{"debit": debit}
	err = mcplock.Protect(ctx, server, alone, once)
	if err != nil {
		return err
	}
	tools := server
	err = mcplock.Protect(ctx, tools, mcplock.Rules{"debit": debit}, nil)
	return err
}
