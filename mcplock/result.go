package mcplock

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/adapter"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/reason"
)

// The names of the middleware's entries in the _meta of a result.
const (
	// MetaReplayed is the mark of a stored result: true. A stored error has the mark in its
	// data, unless it already has data.
	MetaReplayed = "io.github.interlock-go/replayed"
	// MetaRefusal is a refusal for programs, an object: "reason" (package reason) and, if
	// the same call may be sent again, "retryAfterMs", in milliseconds.
	MetaRefusal = "io.github.interlock-go/refusal"
)

// stored is the content of a record: a result or an error, the two members of a response of
// JSON-RPC.
type stored struct {
	Result *mcp.CallToolResult `json:"result,omitempty"`
	Error  *jsonrpc.Error      `json:"error,omitempty"`
}

// statusOf classifies an answer: done, a failure that the tool stands by, or a failure
// after which a repetition runs again. The last is every error of Go, which the SDK hides
// in a result, and an answer that is not final: a question to the client, or the refusal
// of another server that the tool hands on.
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

// replayedData is the mark of a stored error.
var replayedData = json.RawMessage(`{"` + MetaReplayed + `":true}`)

// first returns the answer of a tool without the mark of a stored one. A tool that hands on what another server has
// answered does not pass that server's mark off as its own.
func first(result mcp.Result, failure error) (mcp.Result, error) {
	var known *jsonrpc.Error
	if errors.As(failure, &known) && bytes.Equal(known.Data, replayedData) {
		return result, &jsonrpc.Error{Code: known.Code, Message: failure.Error()}
	}
	if r, _ := result.(*mcp.CallToolResult); r != nil && r.Meta[MetaReplayed] != nil {
		unmarked := *r // the tool may keep the result
		unmarked.Meta = maps.Clone(r.Meta)
		delete(unmarked.Meta, MetaReplayed)
		return &unmarked, failure
	}
	return result, failure
}

// replay returns a stored response. A panic is stored as a text, and an operator may have
// resolved a call without its result.
func replay(r *endpoint.Response) (mcp.Result, error) {
	var s stored
	var e struct {
		Result exact `json:"result"`
	}
	numbers := json.NewDecoder(bytes.NewReader(r.Body))
	numbers.UseNumber()
	switch err := errors.Join(json.Unmarshal(r.Body, &s), numbers.Decode(&e)); {
	case err == nil && s.Result != nil:
		e.Result.put(s.Result)
	case err == nil && s.Error != nil:
	case r.Status == endpoint.FuncDone:
		s.Result = &mcp.CallToolResult{Content: text("The call was carried out, and its result was not kept.")}
	default:
		s.Error = &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: string(r.Body)}
	}
	if s.Error != nil {
		if s.Error.Data == nil {
			s.Error.Data = bytes.Clone(replayedData)
		}
		return nil, s.Error
	}
	if s.Result.Meta == nil {
		s.Result.Meta = mcp.Meta{}
	}
	s.Result.Meta[MetaReplayed] = true
	return s.Result, nil
}

// exact has the parts of a result that the SDK would decode as any, and so round their
// numbers.
type exact struct {
	Meta    mcp.Meta `json:"_meta"`
	Content []struct {
		Meta     mcp.Meta `json:"_meta"`
		Resource struct {
			Meta mcp.Meta `json:"_meta"`
		} `json:"resource"`
	} `json:"content"`
	StructuredContent json.RawMessage `json:"structuredContent"`
}

// put gives a result its numbers back.
func (e *exact) put(r *mcp.CallToolResult) {
	r.Meta = e.Meta
	if len(e.StructuredContent) > 0 {
		r.StructuredContent = e.StructuredContent
	}
	for i, content := range r.Content[:min(len(r.Content), len(e.Content))] {
		of := e.Content[i] // both come from the same JSON
		switch c := content.(type) {
		case *mcp.TextContent:
			c.Meta = of.Meta
		case *mcp.ImageContent:
			c.Meta = of.Meta
		case *mcp.AudioContent:
			c.Meta = of.Meta
		case *mcp.ResourceLink:
			c.Meta = of.Meta
		case *mcp.EmbeddedResource:
			c.Meta = of.Meta
			if c.Resource != nil {
				c.Resource.Meta = of.Resource.Meta
			}
		}
	}
}

// refused makes the result of a refusal. Its text is advice to a model about the refusal.
// rule is the rule of the call, nil for none.
func (c *call) refused(r *core.Refusal, rule *core.Guard) *mcp.CallToolResult {
	meta := map[string]any{"reason": string(r.Reason)}
	said := r.Reason.Text() + " " + r.Reason.Advice()
	switch later := r.RetryAfter(); {
	case later > 0:
		meta["retryAfterMs"] = later.Milliseconds()
		said += fmt.Sprintf(" Wait %.0f second first.", later.Seconds())
	case r.Reason == reason.BadKey && rule != nil:
		for _, p := range rule.Placeholders() {
			if p.Source == adapter.SourceParam {
				said += fmt.Sprintf(" An argument is %s.", strings.TrimPrefix(p.Name, argumentPrefix))
			}
		}
	case r.Reason == reason.KeyMissing:
		said += fmt.Sprintf(" The key is %s in _meta, or the argument %s.", c.keyMeta, c.keyArgument)
	}
	return &mcp.CallToolResult{Meta: mcp.Meta{MetaRefusal: meta}, Content: text(said), IsError: true}
}

func text(s string) []mcp.Content { return []mcp.Content{&mcp.TextContent{Text: s}} }
