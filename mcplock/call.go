package mcplock

import (
	"context"
	"fmt"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/interlock-go/interlock/core/adapter"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
)

// MetaKey is the name of the idempotency key in the _meta of a call, unless [KeyMeta] names
// another.
const MetaKey = "idempotencyKey"

// argumentPrefix may stand before the name of an argument in a template.
const argumentPrefix = "arg."

// call is a call as guards and engines see it. The Message has the name of the tool, the
// arguments and the values of the context.
type call struct {
	adapter.Message
	tool        *mcp.CallToolRequest
	keyArgument string
	keyMeta     string
}

func newCall(ctx context.Context, tool *mcp.CallToolRequest, opts []Option) *call {
	message := adapter.Message{Name: tool.Params.Name, Payload: tool.Params.Arguments, Source: tool, Lookup: ctx.Value}
	c := &call{message, tool, "idempotency_key", MetaKey}
	for _, opt := range opts {
		if opt != nil {
			opt(c)
		}
	}
	return c
}

// Param returns an argument.
func (c *call) Param(name string) (string, error) {
	return adapter.JSONParam(c.tool.Params.Arguments, strings.TrimPrefix(name, argumentPrefix))
}

// Header returns the values of a field of the HTTP request, none over other transports.
func (c *call) Header(name string) []string {
	if c.tool.Extra == nil {
		return nil
	}
	return c.tool.Extra.Header.Values(name)
}

// Protocol returns [endpoint.Func].
func (c *call) Protocol() string { return endpoint.Func }

// Target returns the name of the tool.
func (c *call) Target() (method, path, query string) { return "", c.Name, "" }

// Origin returns the name of the tool.
func (c *call) Origin() (host, path, query string) { return "", c.Name, "" }

// Key returns the idempotency key. An empty argument counts as missing: models fill in
// optional arguments.
func (c *call) Key() (string, error) {
	var keys []string
	if inMeta, ok := c.tool.Params.Meta[c.keyMeta]; ok {
		key, _ := inMeta.(string) // anything else is malformed, as an empty text is
		keys = append(keys, key)
	}
	inArgument, err := adapter.JSONParam(c.tool.Params.Arguments, c.keyArgument)
	if err != nil {
		return "", fmt.Errorf("%w: %w", endpoint.ErrKeyMalformed, err)
	}
	if inArgument != "" {
		keys = append(keys, inArgument)
	}
	return endpoint.ParseKey(keys)
}
