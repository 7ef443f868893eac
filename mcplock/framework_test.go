package mcplock_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/adapter/adaptertest"
	"github.com/interlock-go/interlock/core/idempotency/endpoint/endpointtest"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/core/reason"
	"github.com/interlock-go/interlock/internal/frameworks"
	"github.com/interlock-go/interlock/internal/testkit"
	"github.com/interlock-go/interlock/mcplock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// cannot are the rows that tools do not hold.
var cannot = map[string]string{
	"the failure of a service in between says that its caller holds the lock": "a model decides whether to call a tool again",
}

// transports are MCP over each transport of the tests.
var transports = []adaptertest.Framework{
	{Label: "MCP", Start: wire{connect: inMemory}.start, Idempotent: true, Untyped: true, Cannot: cannot},
	{Label: "MCP, HTTP", Start: wire{connect: overHTTP(nil)}.start, Idempotent: true, Untyped: true, Cannot: cannot},
	{Label: "MCP, stateless HTTP", Start: wire{connect: overHTTP(&mcp.StreamableHTTPOptions{Stateless: true, PropagateRequestCancellation: true})}.start, Idempotent: true, Untyped: true, Cannot: cannot},
}

func TestToolsBehaveAsTheOtherFrameworks(t *testing.T) { adaptertest.Run(t, transports...) }

func TestIdempotentToolsBehaveAsInTheOtherFrameworks(t *testing.T) {
	endpointtest.Run(t, transports...)
}

func TestOneRuleExcludesAcrossToolsAndTheOthers(t *testing.T) {
	store := memstore.New()
	all := append([]adaptertest.Framework{}, frameworks.Protocols...)
	adaptertest.RunAcross(t, func(testing.TB) core.Store { return store }, append(all, transports...)...)
}

// wire is how the client of a service calls it.
type wire struct {
	connect func(testing.TB, *mcp.Server) *mcp.ClientSession
}

// inMemory connects a client without a network.
func inMemory(t testing.TB, server *mcp.Server) *mcp.ClientSession {
	t.Helper()
	near, far := mcp.NewInMemoryTransports()
	served, err := server.Connect(context.Background(), far, nil)
	if err != nil {
		t.Fatal(err)
	}
	session := dial(t, near)
	t.Cleanup(func() { _ = served.Wait() }) // it ends with the session of the client
	t.Cleanup(func() { _ = session.Close() })
	return session
}

// overHTTP connects clients over HTTP.
func overHTTP(opts *mcp.StreamableHTTPOptions, around ...func(http.Handler) http.Handler) func(testing.TB, *mcp.Server) *mcp.ClientSession {
	return func(t testing.TB, server *mcp.Server) *mcp.ClientSession {
		t.Helper()
		handler := http.Handler(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, opts))
		for _, f := range around {
			handler = f(handler)
		}
		srv := testkit.Serve(t, handler)
		session := dial(t, &mcp.StreamableClientTransport{Endpoint: srv.URL, HTTPClient: srv.Client(), MaxRetries: -1})
		t.Cleanup(func() { _ = session.Close() })
		return session
	}
}

// dial connects the client of the SDK.
func dial(t testing.TB, transport mcp.Transport) *mcp.ClientSession {
	t.Helper()
	client := mcp.NewClient(&mcp.Implementation{Name: "agent"}, &mcp.ClientOptions{
		ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			return &mcp.ElicitResult{Action: "accept"}, nil
		},
	})
	session, err := client.Connect(context.Background(), transport, nil)
	if err != nil {
		t.Fatal(err)
	}
	return session
}

func (w wire) start(t testing.TB, s *adaptertest.Service) adaptertest.Client {
	s.Start()
	chain := []mcp.Middleware{recovered, front(s)}
	for _, layer := range s.Layers {
		if layer.Idempotent != nil {
			chain = append(chain, mcplock.Idempotent(mcplock.Tools{"call": layer.Idempotent}))
		} else {
			chain = append(chain, mcplock.Serialize(mcplock.Rules{"call": layer.Lock}))
		}
	}
	server := mcp.NewServer(&mcp.Implementation{Name: "bank"}, nil)
	server.AddReceivingMiddleware(chain...)
	server.AddTool(&mcp.Tool{Name: "call", InputSchema: json.RawMessage(`{"type":"object"}`)}, handler(s))
	return &client{s, w.connect(t, server)}
}

// recovered makes an error of a panic, which would end the process.
func recovered(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (_ mcp.Result, err error) {
		defer func() {
			if thrown := recover(); thrown != nil {
				err = &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: fmt.Sprint(thrown)}
			}
		}()
		return next(ctx, method, req)
	}
}

// front is the middleware in front of the layers. It makes a header of the _meta of a
// call, since the transports in memory have none.
func front(s *adaptertest.Service) mcp.Middleware {
	return func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (result mcp.Result, err error) {
			tool, ok := req.(*mcp.CallToolRequest)
			if !ok {
				return next(ctx, method, req)
			}
			header := http.Header{}
			for _, h := range toAny[[][2]string](tool.Params.Meta["header"]) {
				header.Add(h[0], h[1])
			}
			tool.Extra = &mcp.RequestExtra{Header: header}
			s.Front(ctx, func(ctx context.Context) *http.Request {
				result, err = next(ctx, method, req)
				return nil
			})
			return result, err
		}
	}
}

// toAny encodes a value as JSON and decodes it.
func toAny[T any](v any) (to T) {
	b, _ := json.Marshal(v)
	_ = json.Unmarshal(b, &to)
	return to
}

const codeKey = "code"

// arguments are the arguments of the tool.
type arguments struct {
	ID      string `json:"id"`
	From    string `json:"from"`
	To      string `json:"to"`
	Amount  int64  `json:"amount"`
	Padding string `json:"padding,omitempty"`
}

// handler is the tool of a service.
func handler(s *adaptertest.Service) mcp.ToolHandler {
	return func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		var args arguments
		if err := json.Unmarshal(req.Params.Arguments, &args); err != nil {
			return nil, err
		}
		var text strings.Builder
		result := &mcp.CallToolResult{}
		err := s.Handle(ctx, &adaptertest.Call{
			Param: func(name string) string {
				return map[string]string{"id": args.ID, "from": args.From, "to": args.To}[name]
			},
			Amount: func() (int64, error) { return args.Amount, nil },
			Send:   func(s string) error { text.WriteString(s); return nil },
			Answer: func(kind adaptertest.Result, s string) error {
				switch kind {
				case adaptertest.Declined:
					result.IsError, result.Meta = true, mcp.Meta{codeKey: "FailedPrecondition"}
				case adaptertest.Busy:
					result.Meta = mcp.Meta{codeKey: "ResourceExhausted"}
					result.SetError(errors.New(s))
					return nil
				case adaptertest.Failed:
					return &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: s}
				}
				text.WriteString(s)
				return nil
			},
		})
		if errors.Is(err, adaptertest.ErrHandler) {
			result.IsError, result.Meta, err = true, mcp.Meta{codeKey: "FailedPrecondition"}, nil
			text.WriteString("refused by the handler")
		}
		if result.Content == nil {
			result.Content = []mcp.Content{&mcp.TextContent{Text: text.String()}}
		}
		return result, err
	}
}

// client is an adaptertest.Client of the SDK's.
type client struct {
	service *adaptertest.Service
	session *mcp.ClientSession
}

// Call implements adaptertest.Client. The keys of a request go to the two places of a key.
func (c *client) Call(ctx context.Context, req adaptertest.Request) (o adaptertest.Outcome) {
	before := c.service.Runs()
	defer func() { o.Ran = c.service.Runs() > before }()
	args := map[string]any{"amount": req.Amount}
	for name, value := range req.Values {
		args[name] = value
	}
	if req.Padding > 0 {
		args["padding"] = strings.Repeat(" ", req.Padding)
	}
	meta, header := mcp.Meta{}, [][2]string(nil)
	for _, h := range req.Header {
		switch {
		case h[0] != "idempotency-key":
			header = append(header, h)
		case meta[mcplock.MetaKey] == nil:
			meta[mcplock.MetaKey] = h[1]
		default:
			args["idempotency_key"] = h[1]
		}
	}
	meta["header"] = header
	result, err := c.session.CallTool(ctx, &mcp.CallToolParams{Meta: meta, Name: "call", Arguments: args})
	return outcome(result, err)
}

// outcome reads a result. A tool has no statuses: the code is the code of gRPC for the
// reason, so that the table of answers compares the rest.
func outcome(result *mcp.CallToolResult, err error) (o adaptertest.Outcome) {
	if err != nil {
		var wire *jsonrpc.Error
		if !errors.As(err, &wire) {
			return adaptertest.Outcome{Code: "Canceled"}
		}
		return adaptertest.Outcome{Code: "Internal", Text: wire.Message, Replayed: strings.Contains(string(wire.Data), mcplock.MetaReplayed)}
	}
	text := ""
	for _, content := range result.Content {
		text += content.(*mcp.TextContent).Text
	}
	o.Text, o.OK, o.Code = text, !result.IsError, "OK"
	o.Replayed = result.Meta[mcplock.MetaReplayed] == true
	if code, ok := result.Meta[codeKey].(string); ok {
		o.Code = code
	}
	if refusal, ok := result.Meta[mcplock.MetaRefusal].(map[string]any); ok {
		why, _ := refusal["reason"].(string)
		row := adaptertest.Answers[reason.Reason(why)]
		o = adaptertest.Outcome{Reason: why, Domain: "interlock", Code: row.GRPC, Detail: reason.Reason(why).Text(), Pushback: row.Pushback}
		if !strings.HasPrefix(text, o.Detail+" ") {
			o.Detail = text
		}
		if (refusal["retryAfterMs"] != nil) != (row.HTTPRetry != "") { // as in HTTP
			o.Detail = fmt.Sprintf("retried after %v", refusal["retryAfterMs"])
		}
		o.Retry = row.GRPCRetry
	}
	return o
}

// Open implements adaptertest.Client.
func (c *client) Open(context.Context, adaptertest.Request) (adaptertest.Stream, error) {
	return nil, errors.New("a tool has one result")
}
