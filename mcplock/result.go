package mcplock

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/adapter"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/reason"
)

// The names of what the middleware puts into the _meta of a result.
const (
	// MetaReplayed is the mark of a stored result: true. A stored error has the mark in
	// its data, unless it has data of its own.
	MetaReplayed = "io.github.interlock-go/replayed"
	// MetaRefusal is a refusal for programs, an object: "reason" (package reason) and, if
	// the same call may be sent again, "retryAfterMs", in milliseconds.
	MetaRefusal = "io.github.interlock-go/refusal"
)

// retryAfter is when a client may try again; when the holder will be done is not known.
const retryAfter = time.Second

// stored is what a record keeps: one of the two members of a response of JSON-RPC.
type stored struct {
	Result *mcp.CallToolResult `json:"result,omitempty"`
	Error  *jsonrpc.Error      `json:"error,omitempty"`
}

// statusOf says what an answer is: done, a failure that the tool stands by, or a failure
// after which a repetition runs again. The last is every error of Go, which the SDK hides
// in a result, and what is no answer yet: a question to the client, or the refusal of
// another server that the tool hands on.
func statusOf(result mcp.Result, err error) int {
	r, _ := result.(*mcp.CallToolResult)
	switch {
	case err != nil || r != nil && (r.GetError() != nil || r.InputRequests != nil || r.NeedsInput() || r.Meta[MetaRefusal] != nil):
		return endpoint.FuncFailed
	case r != nil && r.IsError:
		return endpoint.FuncFinal
	}
	return endpoint.FuncDone
}

// capture returns the response to store. A result that cannot be stored is sent all the
// same.
func capture(attempt endpoint.Attempt, result mcp.Result, failure error) endpoint.Response {
	s, status := stored{}, statusOf(result, failure)
	if failure == nil {
		s.Result, _ = result.(*mcp.CallToolResult)
	} else {
		var known *jsonrpc.Error
		s.Error = &jsonrpc.Error{Message: failure.Error()} // as the SDK sends it
		if errors.As(failure, &known) {
			s.Error.Code, s.Error.Data = known.Code, known.Data
		}
	}
	body, err := json.Marshal(s)
	if err != nil || s == (stored{}) {
		attempt.TooLarge(status)
	}
	return endpoint.Response{Status: status, Body: body}
}

// replay returns a stored response. A panic is stored as a text, and an operator may have
// resolved a call without its result.
func replay(r *endpoint.Response) (mcp.Result, error) {
	var s stored
	var exact struct { // any would round the numbers
		Result struct {
			StructuredContent json.RawMessage `json:"structuredContent"`
		} `json:"result"`
	}
	switch err := errors.Join(json.Unmarshal(r.Body, &s), json.Unmarshal(r.Body, &exact)); {
	case err == nil && s.Result != nil:
		if len(exact.Result.StructuredContent) > 0 {
			s.Result.StructuredContent = exact.Result.StructuredContent
		}
	case err == nil && s.Error != nil:
	case r.Status == endpoint.FuncDone:
		s.Result = &mcp.CallToolResult{Content: text("The call was carried out, and its result was not kept.")}
	default:
		s.Error = &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: string(r.Body)}
	}
	if s.Error != nil {
		if s.Error.Data == nil {
			s.Error.Data = json.RawMessage(`{"` + MetaReplayed + `":true}`)
		}
		return nil, s.Error
	}
	if s.Result.Meta == nil {
		s.Result.Meta = mcp.Meta{}
	}
	s.Result.Meta[MetaReplayed] = true
	return s.Result, nil
}

// refused makes the result of a refusal. Its text says what a model can do about the
// refusal. rule is the rule of the call, nil for none.
func (c *call) refused(r *core.Refusal, rule *core.Guard) *mcp.CallToolResult {
	meta := map[string]any{"reason": string(r.Reason)}
	said := r.Reason.Text() + " " + r.Reason.Advice()
	switch {
	case r.Retryable() || r.Reason == reason.InFlight:
		meta["retryAfterMs"] = retryAfter.Milliseconds()
		said += fmt.Sprintf(" Wait %.0f second first.", retryAfter.Seconds())
	case r.Reason == reason.BadKey && rule != nil:
		for _, p := range rule.Placeholders() {
			if p.Source == adapter.SourceParam {
				said += fmt.Sprintf(" An argument is %s.", strings.TrimPrefix(p.Name, argumentPrefix))
			}
		}
	case r.Reason == reason.KeyMissing:
		said += fmt.Sprintf(" The key is %s in _meta, or the argument %s.", MetaKey, c.keyArgument)
	}
	return &mcp.CallToolResult{Meta: mcp.Meta{MetaRefusal: meta}, Content: text(said), IsError: true}
}

func text(s string) []mcp.Content { return []mcp.Content{&mcp.TextContent{Text: s}} }
