package mcplock_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/internal/testkit"
	"github.com/interlock-go/interlock/mcplock"
)

// transfer is the input of a tool with a schema from the SDK.
type transfer struct {
	Account struct {
		ID int `json:"id"`
	} `json:"account"`
	Tags   []string          `json:"tags"`
	Labels map[string]string `json:"labels"`
}

func TestProtectFindsWhatCannotWork(t *testing.T) {
	locker := testkit.Locker(t)
	server := mcp.NewServer(&mcp.Implementation{Name: "bank"}, &mcp.ServerOptions{PageSize: 1})
	for name, schema := range map[string]string{
		"debit":  `{"type":"object","properties":{"account_id":{"type":"integer"}}}`,
		"open":   `{"type":"object","properties":{"id":{}},"additionalProperties":true}`,
		"texts":  `{"type":"object","properties":{"id":{}},"additionalProperties":{"type":"string"}}`,
		"merged": `{"type":"object","properties":{"id":{}},"allOf":[{"properties":{"account_id":{}}}]}`,
		"free":   `{"type":"object"}`,
	} {
		server.AddTool(&mcp.Tool{Name: name, InputSchema: json.RawMessage(schema)}, says("done"))
	}
	mcp.AddTool(server, &mcp.Tool{Name: "pay"}, func(context.Context, *mcp.CallToolRequest, transfer) (*mcp.CallToolResult, any, error) {
		return nil, nil, nil
	})
	rule := func(template string) *core.Guard { return core.Serialize(locker, template) }
	under := func(template string) *idempotency.Engine {
		return testkit.Engine(t).With(idempotency.Under(rule(template)))
	}
	for name, c := range map[string]struct {
		rules mcplock.Rules
		tools mcplock.Tools
		want  []string // nil: nothing
	}{
		"nothing": {},
		"all right": {
			mcplock.Rules{"debit": rule("account/{arg.account_id:int}"), "free": rule("account/{any}")},
			mcplock.Tools{"pay": under("account/{account.id}"), "debit": testkit.Engine(t)},
			nil,
		},
		"a name that is mistyped":           {mcplock.Rules{"Debit": rule("account/{account_id}")}, nil, []string{`"Debit"`, `"debit" "free"`}},
		"a tool that is mistyped":           {nil, mcplock.Tools{"payy": testkit.Engine(t)}, []string{`"payy"`}},
		"no argument":                       {mcplock.Rules{"debit": rule("account/{arg.id}")}, nil, []string{`"debit"`, "{arg.id}", `"account_id"`}},
		"no argument of the engine's":       {nil, mcplock.Tools{"debit": under("account/{id}")}, []string{`"debit"`, "{id}"}},
		"no nested argument":                {mcplock.Rules{"pay": rule("account/{account.ID}")}, nil, []string{"account.ID", `"id"`}},
		"an object":                         {mcplock.Rules{"pay": rule("account/{account}")}, nil, []string{"object"}},
		"an argument of a map":              {mcplock.Rules{"pay": rule("account/{labels.eu}")}, nil, nil},
		"more arguments than the schema":    {mcplock.Rules{"open": rule("account/{account_id}")}, nil, nil},
		"more arguments of one schema":      {mcplock.Rules{"texts": rule("account/{account_id}")}, nil, nil},
		"a schema of parts":                 {mcplock.Rules{"merged": rule("account/{account_id}")}, nil, nil},
		"a nil rule":                        {mcplock.Rules{"debit": nil}, nil, []string{`"debit"`, "nil"}},
		"a nil engine":                      {nil, mcplock.Tools{"debit": nil}, []string{`"debit"`, "nil"}},
		"values that are not of the schema": {mcplock.Rules{"debit": rule("tenant/{header.X-Tenant}/account/{account_id}")}, nil, nil},
	} {
		err := mcplock.Protect(t.Context(), server, c.rules, c.tools)
		if (err != nil) != (c.want != nil) || err != nil && !errors.Is(err, core.ErrConfig) {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, text := range c.want {
			if !strings.Contains(err.Error(), text) {
				t.Errorf("%s: %v; want %q in it", name, err, text)
			}
		}
	}
}

func TestProtectOfAServerWithoutTools(t *testing.T) {
	server := mcp.NewServer(&mcp.Implementation{Name: "bank"}, nil)
	if err := mcplock.Protect(t.Context(), server, nil, nil); err != nil {
		t.Error(err)
	}
	rules := mcplock.Rules{"debit": core.Serialize(testkit.Locker(t), "account/{id}")}
	if err := mcplock.Protect(t.Context(), server, rules, nil); !errors.Is(err, core.ErrConfig) {
		t.Errorf("%v; want ErrConfig", err)
	}
}

// Middleware that wants a user refuses Protect, which says so, and changes nothing.
func TestProtectSaysThatMiddlewareRefusesIt(t *testing.T) {
	refusing := errors.New("no user")
	for _, method := range []string{"initialize", "tools/list"} {
		server := serverOf(map[string]mcp.ToolHandler{"debit": says("done")}, func(next mcp.MethodHandler) mcp.MethodHandler {
			return func(ctx context.Context, m string, req mcp.Request) (mcp.Result, error) {
				if m == method || m == "server/discover" && method == "initialize" {
					return nil, refusing
				}
				return next(ctx, m, req)
			}
		})
		err := mcplock.Protect(t.Context(), server, nil, nil)
		if err == nil || !strings.Contains(err.Error(), refusing.Error()) || errors.Is(err, core.ErrConfig) {
			t.Errorf("%s: %v", method, err)
		}
		for range server.Sessions() {
			t.Errorf("%s: a session is left", method)
		}
	}
}
