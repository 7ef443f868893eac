package mcplock_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/adapter"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/admin"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/core/reason"
	"github.com/interlock-go/interlock/internal/testkit"
	"github.com/interlock-go/interlock/mcplock"
)

// serverOf is a server with tools and middleware.
func serverOf(tools map[string]mcp.ToolHandler, middleware ...mcp.Middleware) *mcp.Server {
	server := mcp.NewServer(&mcp.Implementation{Name: "bank"}, nil)
	server.AddReceivingMiddleware(middleware...)
	for name, h := range tools {
		server.AddTool(&mcp.Tool{Name: name, InputSchema: json.RawMessage(`{"type":"object"}`)}, h)
	}
	return server
}

// send calls a tool with a key in its _meta, none if the key is empty.
func send(t testing.TB, session *mcp.ClientSession, name, key, args string) (*mcp.CallToolResult, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	params := &mcp.CallToolParams{Name: name, Arguments: json.RawMessage(args)}
	if key != "" {
		params.Meta = mcp.Meta{mcplock.MetaKey: key}
	}
	return session.CallTool(ctx, params)
}

// told is the content of a result for a model and for a program.
func told(result *mcp.CallToolResult, err error) string {
	if err != nil {
		return "error: " + err.Error()
	}
	var b strings.Builder
	if result.Meta[mcplock.MetaReplayed] == true {
		b.WriteString("replayed ")
	}
	if refusal, ok := result.Meta[mcplock.MetaRefusal].(map[string]any); ok {
		fmt.Fprintf(&b, "%v %v ", refusal["reason"], refusal["retryAfterMs"])
	}
	if result.IsError {
		b.WriteString("failed ")
	}
	for _, content := range result.Content {
		b.WriteString(content.(*mcp.TextContent).Text)
	}
	return b.String()
}

// says is a tool that answers with a text.
func says(text string) mcp.ToolHandler {
	return func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}}, nil
	}
}

// counts is a tool that says how often it ran.
func counts(runs *atomic.Int32) mcp.ToolHandler {
	return func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return says(fmt.Sprint("run ", runs.Add(1)))(ctx, req)
	}
}

// keyOf is a tool that says which lock it holds.
func keyOf(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	return says(core.LeaseFromContext(ctx).Key())(ctx, req)
}

func TestTheArgumentsMakeTheKey(t *testing.T) {
	locker := testkit.Locker(t)
	session := inMemory(t, serverOf(map[string]mcp.ToolHandler{"plain": keyOf, "nested": keyOf, "form": keyOf}, mcplock.Serialize(mcplock.Rules{
		"plain":  core.Serialize(locker, "account/{arg.account_id}"),
		"nested": core.Serialize(locker, "account/{account.id}"),
		"form":   core.Serialize(locker, "account/{arg.account_id:int}"),
	})))
	for tool, calls := range map[string]map[string]string{
		"plain": {
			`{"account_id":42}`: "account/42", `{"account_id":42.0}`: "account/42", `{"account_id":"42"}`: "account/42",
			`{"account_id":"042"}`: "account/042", `{"account_id":"a/b"}`: "account/a%2Fb", `{"account_id":true}`: "account/true",
			`{}`: "", `{"account_id":null}`: "", `{"account_id":""}`: "", `{"account_id":4.5}`: "",
			`{"account_id":[42]}`: "", `{"account_id":{"id":42}}`: "", `{"account_id":42,"Account_ID":43}`: "",
			`{"account_id":90071992547409930}`: "", `{"arg":{"account_id":42}}`: "",
		},
		"nested": {`{"account":{"id":42}}`: "account/42", `{"account":42}`: "", `{"account.id":42}`: ""},
		"form":   {`{"account_id":"+042"}`: "account/42", `{"account_id":"a"}`: ""},
	} {
		for args, want := range calls {
			if want == "" {
				want = "bad-key <nil> failed The request does not name the resource to lock. " +
					"Give each value that names the resource: text, a whole number or a boolean. An argument is " +
					map[string]string{"plain": "account_id.", "nested": "account.id.", "form": "account_id."}[tool]
			}
			if got := told(send(t, session, tool, "", args)); got != want {
				t.Errorf("%s %s: %q; want %q", tool, args, got, want)
			}
		}
	}
}

func TestCallsWithoutARulePass(t *testing.T) {
	locker := testkit.Locker(t)
	session := inMemory(t, serverOf(map[string]mcp.ToolHandler{"debit": keyOf, "balance": says("100")},
		mcplock.Idempotent(mcplock.Tools{"debit": testkit.Engine(t)}),
		mcplock.Serialize(mcplock.Rules{"debit": core.Serialize(locker, "account/{arg.id}")}),
		mcplock.Serialize(nil), mcplock.Idempotent(nil)))
	if got := told(send(t, session, "balance", "", `{}`)); got != "100" {
		t.Errorf("%q", got)
	}
	list, err := session.ListTools(t.Context(), nil)
	if err != nil || len(list.Tools) != 2 {
		t.Errorf("%+v, %v", list, err)
	}
	if got := told(send(t, session, "none", "k", `{}`)); !strings.Contains(got, `unknown tool "none"`) {
		t.Errorf("%q", got)
	}
}

func TestARefusalSaysWhatToDo(t *testing.T) {
	store := memstore.New()
	locker := testkit.LockerOn(t, store)
	var runs atomic.Int32
	inside, leave := make(chan struct{}), make(chan struct{})
	slow := func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		close(inside)
		<-leave
		return counts(&runs)(ctx, req)
	}
	engine := testkit.EngineOn(t, store, idempotency.Global())
	session := inMemory(t, serverOf(map[string]mcp.ToolHandler{"pay": slow, "debit": says("debited")},
		mcplock.Idempotent(mcplock.Tools{"pay": engine}, nil, mcplock.KeyArgument("meta.idempotency-key")),
		mcplock.Serialize(mcplock.Rules{"debit": core.Serialize(locker, "account/{arg.id}", core.Wait(0))})))
	lease, err := locker.Lock(t.Context(), "account/42")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lease.Release(context.Background()) }()
	first := make(chan string, 1)
	go func() { first <- told(send(t, session, "pay", "k", `{"amount":1,"to":"bob"}`)) }()
	testkit.Receive(t, inside, "the first call")
	const later = "Send the same request again later, with the same idempotency key if it has one. Wait 1 second first."
	for _, c := range []struct{ tool, key, args, want string }{
		{"debit", "", `{"id":42}`, "held 1000 failed The resource is locked by another request. Nothing was done. " + later},
		{"pay", "k", `{"to":"bob", "amount":1}`, "idempotency-in-flight 1000 failed A request with the same idempotency key is being carried out. " + later},
		{"pay", "k", `{"amount":2,"to":"bob"}`, "idempotency-key-reused <nil> failed The idempotency key was used for another request. Nothing was done. " +
			"For the answer to the first request, repeat that request exactly. For another request, make a new key."},
		{"pay", "", `{"amount":1}`, "idempotency-key-missing <nil> failed The request needs an idempotency key. Nothing was done. " +
			"Make a new key for each request, and send the same key with each repetition of the request. " +
			"The key is idempotencyKey in _meta, or the argument meta.idempotency-key."},
		{"pay", "k", `{"meta":{"idempotency-key":"k"}}`, "idempotency-key-malformed"},
		{"pay", "", `{"meta":{"idempotency-key":["k"]}}`, "idempotency-key-malformed"},
		{"pay", "", `{"meta":{"Idempotency-Key":"k"}}`, "idempotency-key-malformed"},
		{"pay", "", `{"meta":{"idempotency-key":""}}`, "idempotency-key-missing"},
		{"pay", "", `{"meta":{"idempotency-key":null}}`, "idempotency-key-missing"},
	} {
		if got := told(send(t, session, c.tool, c.key, c.args)); !strings.HasPrefix(got, c.want) {
			t.Errorf("%s %s %s: %q; want %q", c.tool, c.key, c.args, got, c.want)
		}
	}
	close(leave)
	if got := testkit.Receive(t, first, "the answer"); got != "run 1" {
		t.Errorf("first: %q", got)
	}
	if got := told(send(t, session, "pay", "k", `{"to":"bob","amount":1}`)); got != "replayed run 1" {
		t.Errorf("again: %q", got)
	}
	params := &mcp.CallToolParams{Name: "pay", Meta: mcp.Meta{mcplock.MetaKey: 7}}
	if got := told(session.CallTool(t.Context(), params)); !strings.HasPrefix(got, "idempotency-key-malformed") {
		t.Errorf("a number in _meta: %q", got)
	}
}

// unsendable is a value that no encoder of JSON accepts.
var unsendable = make(chan int)

// dropUnsendable is middleware in front: the SDK sends no answer for such a result.
func dropUnsendable(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		result, err := next(ctx, method, req)
		if r, ok := result.(*mcp.CallToolResult); ok && r != nil && r.StructuredContent == any(unsendable) {
			return says("dropped")(ctx, nil)
		}
		return result, err
	}
}

// The stored result, by the answer of the tool.
func TestWhatARepetitionGets(t *testing.T) {
	marks := func(ctx context.Context) {
		if err := idempotency.MarkEffect(ctx); err != nil {
			t.Error(err)
		}
	}
	for name, c := range map[string]struct {
		first         func(ctx context.Context, r *mcp.CallToolResult) (*mcp.CallToolResult, error)
		want, repeats string
	}{
		"a result": {func(_ context.Context, r *mcp.CallToolResult) (*mcp.CallToolResult, error) { return r, nil }, "run 1", "replayed run 1"},
		"a result in error": {func(_ context.Context, r *mcp.CallToolResult) (*mcp.CallToolResult, error) {
			r.IsError = true
			return r, nil
		}, "failed run 1", "replayed failed run 1"},
		"an error of Go": {func(_ context.Context, r *mcp.CallToolResult) (*mcp.CallToolResult, error) {
			r.SetError(errors.New("disk"))
			return r, nil
		}, "failed run 1", "run 2"},
		"an error of Go, marked": {func(ctx context.Context, r *mcp.CallToolResult) (*mcp.CallToolResult, error) {
			marks(ctx)
			r.SetError(errors.New("disk"))
			return r, nil
		}, "failed run 1", "replayed failed run 1"},
		"an error of the protocol": {func(context.Context, *mcp.CallToolResult) (*mcp.CallToolResult, error) {
			return nil, &jsonrpc.Error{Code: -32000, Message: "disk"}
		}, `error: calling "tools/call": disk`, "run 2"},
		"an error of the protocol, marked": {func(ctx context.Context, _ *mcp.CallToolResult) (*mcp.CallToolResult, error) {
			marks(ctx)
			return nil, fmt.Errorf("pay: %w", &jsonrpc.Error{Code: -32000, Message: "disk"})
		}, `error: calling "tools/call": pay: disk`, `error: calling "tools/call": pay: disk`},
		"a refusal that is handed on": {func(_ context.Context, r *mcp.CallToolResult) (*mcp.CallToolResult, error) {
			r.Meta = mcp.Meta{mcplock.MetaRefusal: map[string]any{"reason": "held", "retryAfterMs": 1000}}
			r.IsError = true
			return r, nil
		}, "held 1000 failed run 1", "run 2"},
		"a result that cannot be stored": {func(context.Context, *mcp.CallToolResult) (*mcp.CallToolResult, error) {
			return &mcp.CallToolResult{StructuredContent: unsendable}, nil
		}, "dropped", "idempotency-response-unavailable"},
	} {
		t.Run(name, func(t *testing.T) {
			var runs atomic.Int32
			pay := func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
				r, err := counts(&runs)(ctx, req)
				if runs.Load() == 1 {
					return c.first(ctx, r)
				}
				return r, err
			}
			session := inMemory(t, serverOf(map[string]mcp.ToolHandler{"pay": pay}, dropUnsendable, mcplock.Idempotent(mcplock.Tools{"pay": testkit.Engine(t)})))
			for i, want := range []string{c.want, c.repeats} {
				if got := told(send(t, session, "pay", "k", `{}`)); !strings.HasPrefix(got, want) {
					t.Errorf("call %d: %q; want %q", i+1, got, want)
				}
			}
		})
	}
}

// A service that does not want results in error stored can tell them apart.
func TestAResultInErrorIsAnAnswerOfItsOwnKind(t *testing.T) {
	var runs atomic.Int32
	done := idempotency.StoreIf(func(_ context.Context, r endpoint.Response) bool { return r.Status == endpoint.FuncDone })
	session := inMemory(t, serverOf(map[string]mcp.ToolHandler{
		"pay": func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			r, err := counts(&runs)(ctx, req)
			r.IsError = runs.Load() == 1
			return r, err
		},
	}, mcplock.Idempotent(mcplock.Tools{"pay": testkit.Engine(t, done)})))
	for _, want := range []string{"failed run 1", "run 2", "replayed run 2"} {
		if got := told(send(t, session, "pay", "k", `{}`)); got != want {
			t.Errorf("%q; want %q", got, want)
		}
	}
}

// The code and the mark are in the replay of an error.
func TestAStoredErrorOfTheProtocolKeepsItsCode(t *testing.T) {
	for data, marked := range map[string]bool{"": true, `{"a":1}`: false} {
		pay := func(ctx context.Context, _ *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			_ = idempotency.MarkEffect(ctx)
			return nil, &jsonrpc.Error{Code: -32000, Message: "disk", Data: json.RawMessage(data)}
		}
		session := inMemory(t, serverOf(map[string]mcp.ToolHandler{"pay": pay}, mcplock.Idempotent(mcplock.Tools{"pay": testkit.Engine(t)})))
		for i := range 2 {
			_, err := send(t, session, "pay", "k", `{}`)
			var wire *jsonrpc.Error
			if !errors.As(err, &wire) || wire.Code != -32000 {
				t.Fatalf("%v", err)
			}
			if got := strings.Contains(string(wire.Data), mcplock.MetaReplayed); got != (marked && i == 1) || !marked && string(wire.Data) != data {
				t.Errorf("call %d: data %s", i+1, wire.Data)
			}
		}
	}
}

// The first result of a tool that hands on the stored result of another server is also the first result of this tool.
func TestAToolDoesNotPassTheMarkOfAnotherServerOn(t *testing.T) {
	upstream := inMemory(t, serverOf(map[string]mcp.ToolHandler{
		"pay": func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "paid"}}, Meta: mcp.Meta{"by": "upstream"}}, nil
		},
		"fail": func(ctx context.Context, _ *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			_ = idempotency.MarkEffect(ctx)
			return nil, &jsonrpc.Error{Code: -32000, Message: "disk"}
		},
	}, mcplock.Idempotent(mcplock.Tools{"pay": testkit.Engine(t), "fail": testkit.Engine(t)})))
	between := map[string]mcp.ToolHandler{}
	for _, name := range []string{"pay", "fail"} {
		_, _ = send(t, upstream, name, "k", `{}`) // a former process of the service in between
		between[name] = func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return send(t, upstream, name, "k", `{}`)
		}
	}
	session := inMemory(t, serverOf(between, mcplock.Idempotent(mcplock.Tools{"pay": testkit.Engine(t), "fail": testkit.Engine(t)})))
	for _, want := range []string{"paid", "replayed paid"} {
		result, err := send(t, session, "pay", "k", `{}`)
		if got := told(result, err); got != want || result.Meta["by"] != "upstream" {
			t.Errorf("%q, %v; want %q with the other entries of _meta", got, result.Meta, want)
		}
	}
	_, err := send(t, session, "fail", "k", `{}`)
	var wire *jsonrpc.Error
	if !errors.As(err, &wire) || wire.Code != -32000 || len(wire.Data) > 0 {
		t.Errorf("%v; want the code of the other server without its mark", err)
	}
}

type receipt struct {
	Account int64  `json:"account"`
	Text    string `json:"text"`
}

// A copy by way of a float64 would round the number.
func TestMetaIsReplayedToTheLastDigit(t *testing.T) {
	const account = 9007199254740993
	meta := mcp.Meta{"account": account, "nested": map[string]any{"account": account}}
	server := serverOf(nil, mcplock.Idempotent(mcplock.Tools{"pay": testkit.Engine(t)}))
	var sent []string
	server.AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			result, err := next(ctx, method, req)
			if r, ok := result.(*mcp.CallToolResult); ok {
				delete(r.Meta, mcplock.MetaReplayed)
				b, _ := json.Marshal(r)
				sent = append(sent, string(b))
			}
			return result, err
		}
	})
	server.AddTool(&mcp.Tool{Name: "pay", InputSchema: json.RawMessage(`{"type":"object"}`)},
		func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return &mcp.CallToolResult{Meta: meta, Content: []mcp.Content{
				&mcp.TextContent{Text: "paid", Meta: meta},
				&mcp.ImageContent{Meta: meta, MIMEType: "image/png"},
				&mcp.AudioContent{Meta: meta, MIMEType: "audio/ogg"},
				&mcp.ResourceLink{URI: "a:b", Name: "b", Meta: meta},
				&mcp.EmbeddedResource{Meta: meta, Resource: &mcp.ResourceContents{URI: "a:b", Text: "b", Meta: meta}},
			}}, nil
		})
	session := inMemory(t, server)
	for range 2 {
		_, _ = send(t, session, "pay", "k1", `{}`) // the middleware has noted it
	}
	if len(sent) != 2 || sent[0] != sent[1] || strings.Count(sent[0], "9007199254740993") != 14 {
		t.Errorf("the results differ, or miss some of 14 numbers:\n%s", strings.Join(sent, "\n"))
	}
}

func TestStructuredContentIsReplayedToTheLastDigit(t *testing.T) {
	const account = 9007199254740993
	server := serverOf(nil, mcplock.Idempotent(mcplock.Tools{"pay": testkit.Engine(t)}))
	var structured [2]string
	var n atomic.Int32
	server.AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			result, err := next(ctx, method, req)
			if r, ok := result.(*mcp.CallToolResult); ok {
				b, _ := json.Marshal(r.StructuredContent)
				structured[n.Add(1)-1] = string(b)
			}
			return result, err
		}
	})
	mcp.AddTool(server, &mcp.Tool{Name: "pay", OutputSchema: json.RawMessage(`{"type":["object"]}`)},
		func(context.Context, *mcp.CallToolRequest, any) (*mcp.CallToolResult, any, error) {
			return &mcp.CallToolResult{StructuredContent: receipt{account, "<b>"}}, nil, nil
		})
	session := inMemory(t, server)
	for range 2 {
		if got := told(send(t, session, "pay", "k", `{}`)); strings.Contains(got, "error") {
			t.Fatal(got)
		}
	}
	if structured[0] != structured[1] || !strings.Contains(structured[1], fmt.Sprint(account)) {
		t.Errorf("%q", structured)
	}
}

// A question to the client is no answer: the call that comes with the response runs on,
// with the same key.
func TestAToolThatAsksTheClientIsAnsweredOnce(t *testing.T) {
	var runs atomic.Int32
	pay := func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		if len(req.Params.InputResponses) == 0 {
			return &mcp.CallToolResult{InputRequests: mcp.InputRequestMap{"sure": &mcp.ElicitParams{Message: "Sure?"}}}, nil
		}
		return counts(&runs)(ctx, req)
	}
	server := serverOf(map[string]mcp.ToolHandler{"pay": pay}, mcplock.Idempotent(mcplock.Tools{"pay": testkit.Engine(t)}))
	for name, session := range map[string]*mcp.ClientSession{
		"in memory": inMemory(t, server), "stateless HTTP": overHTTP(&mcp.StreamableHTTPOptions{Stateless: true})(t, server),
	} {
		runs.Store(0)
		for _, want := range []string{"run 1", "replayed run 1"} {
			if got := told(send(t, session, "pay", name[:2], `{}`)); got != want {
				t.Errorf("%s: %q; want %q", name, got, want)
			}
		}
	}
}

// withUsers authenticates a user by the token, which is the name.
func withUsers(next http.Handler) http.Handler {
	verify := func(_ context.Context, token string, _ *http.Request) (*auth.TokenInfo, error) {
		return &auth.TokenInfo{UserID: strings.TrimPrefix(token, "nameless"), Expiration: time.Now().Add(time.Hour)}, nil
	}
	return auth.RequireBearerToken(verify, nil)(next)
}

// bearer is the transport of a client with a token.
type bearer struct{ token string }

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.token)
	return http.DefaultTransport.RoundTrip(r)
}

func TestUsersDoNotSeeEachOthersRecords(t *testing.T) {
	testkit.LogTo(t)
	defer http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	for name, opts := range map[string]*mcp.StreamableHTTPOptions{"sessions": nil, "stateless": {Stateless: true}} {
		t.Run(name, func(t *testing.T) {
			var runs atomic.Int32
			locker := testkit.Locker(t)
			engine := testkit.EngineOn(t, memstore.New(), idempotency.Scope(mcplock.User))
			server := serverOf(map[string]mcp.ToolHandler{"pay": counts(&runs), "own": keyOf},
				mcplock.Idempotent(mcplock.Tools{"pay": engine}),
				mcplock.Serialize(mcplock.Rules{"own": core.Serialize(locker, "user/{ctx.user}/{header.Authorization}", core.ContextFunc("user", mcplock.User))}))
			srv := testkit.Serve(t, withUsers(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, opts)))
			as := func(user string) *mcp.ClientSession {
				session := dial(t, &mcp.StreamableClientTransport{Endpoint: srv.URL, HTTPClient: &http.Client{Transport: bearer{user}}, MaxRetries: -1})
				t.Cleanup(func() { _ = session.Close() })
				return session
			}
			for _, c := range []struct {
				session *mcp.ClientSession
				want    string
			}{
				{as("alice"), "run 1"},
				{as("bob"), "run 2"},
				{as("alice"), "replayed run 1"}, // another session of hers
				{as("nameless"), "idempotency-no-principal <nil> failed "},
			} {
				if got := told(send(t, c.session, "pay", "k", `{"amount":1}`)); !strings.HasPrefix(got, c.want) {
					t.Errorf("%q; want %q", got, c.want)
				}
			}
			if got := told(send(t, as("alice"), "own", "", `{}`)); got != "user/alice/Bearer%20alice" {
				t.Errorf("%q", got)
			}
		})
	}
}

func TestSessionsDoNotSeeEachOthersRecords(t *testing.T) {
	testkit.LogTo(t)
	var runs atomic.Int32
	engine := testkit.EngineOn(t, memstore.New(), idempotency.Scope(mcplock.Session))
	server := serverOf(map[string]mcp.ToolHandler{"pay": counts(&runs)}, mcplock.Idempotent(mcplock.Tools{"pay": engine}))
	first, second := overHTTP(nil)(t, server), overHTTP(nil)(t, server)
	for _, c := range []struct {
		session *mcp.ClientSession
		want    string
	}{
		{first, "run 1"},
		{second, "run 2"},
		{first, "replayed run 1"},
		{inMemory(t, server), "idempotency-no-principal <nil> failed "},
		{overHTTP(&mcp.StreamableHTTPOptions{Stateless: true})(t, server), "idempotency-no-principal <nil> failed "},
	} {
		if got := told(send(t, c.session, "pay", "k", `{}`)); !strings.HasPrefix(got, c.want) {
			t.Errorf("%q; want %q", got, c.want)
		}
	}
}

func TestTheFunctionsForPrincipalsFindNothingInOtherRequests(t *testing.T) {
	for name, f := range map[string]core.RequestFunc{"User": mcplock.User, "Session": mcplock.Session} {
		for _, native := range []any{nil, &mcp.CallToolRequest{}, &mcp.CallToolRequest{Extra: &mcp.RequestExtra{}}} {
			if who, err := f(t.Context(), &adapter.Message{Source: native}); who != "" || err != nil {
				t.Errorf("%s: %q, %v", name, who, err)
			}
		}
	}
}

func TestACallWhoseOutcomeIsUnknownIsResolvedByAnOperator(t *testing.T) {
	testkit.LogTo(t)
	for _, c := range []struct {
		status     int
		body, want string
	}{
		{endpoint.FuncDone, "", "replayed The call was carried out, and its result was not kept."},
		{endpoint.FuncDone, `{"result":{"content":[{"type":"text","text":"paid"}]}}`, "replayed paid"},
		{endpoint.FuncFinal, `{"result":{"content":[{"type":"text","text":"poor"}],"isError":true}}`, "replayed failed poor"},
		{endpoint.FuncFailed, "it was refused", `error: calling "tools/call": it was refused`},
	} {
		store := memstore.New()
		engine := testkit.EngineOn(t, store, idempotency.Global())
		dying, err := idempotency.New(store, idempotency.Global(), idempotency.Lease(time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		die := func(ctx context.Context, _ *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			if err := idempotency.MarkEffect(ctx); err != nil {
				t.Error(err)
			}
			now, cancel := context.WithCancel(context.Background())
			cancel()
			_ = dying.Close(now) // ends ctx
			<-ctx.Done()
			return nil, context.Cause(ctx)
		}
		first := inMemory(t, serverOf(map[string]mcp.ToolHandler{"pay": die}, mcplock.Idempotent(mcplock.Tools{"pay": dying})))
		if got := told(send(t, first, "pay", "k", `{}`)); !strings.Contains(got, "Find out") {
			t.Errorf("the engine that died: %q", got)
		}
		store.LapseClaims()
		again := inMemory(t, serverOf(map[string]mcp.ToolHandler{"pay": says("ran again")}, mcplock.Idempotent(mcplock.Tools{"pay": engine})))
		if got := told(send(t, again, "pay", "k", `{}`)); !strings.HasPrefix(got, string(reason.OutcomeUnknown)+" <nil> failed ") ||
			!strings.HasSuffix(got, "Do not send the request with another key. Find out what happened in another way, or ask a person.") {
			t.Errorf("unknown: %q", got)
		}
		if err := engine.Resolve(t.Context(), "", "k", admin.CarriedOut(endpoint.Func, endpoint.Response{Status: c.status, Body: []byte(c.body)})); err != nil {
			t.Fatal(err)
		}
		if got := told(send(t, again, "pay", "k", `{}`)); got != c.want {
			t.Errorf("resolved: %q; want %q", got, c.want)
		}
	}
}

// A call that the client cancels ends at once under a rule, and goes on under an engine.
func TestACallThatIsCanceled(t *testing.T) {
	for name, connect := range map[string]func(testing.TB, *mcp.Server) *mcp.ClientSession{"in memory": inMemory, "HTTP": overHTTP(nil)} {
		t.Run(name, func(t *testing.T) {
			store := memstore.New()
			locker := testkit.LockerOn(t, store)
			inside, leave, ended := make(chan struct{}, 2), make(chan struct{}), make(chan error, 1)
			session := connect(t, serverOf(map[string]mcp.ToolHandler{
				"debit": func(ctx context.Context, _ *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
					inside <- struct{}{}
					err := testkit.Meet[struct{}](ctx, nil)
					ended <- context.Cause(ctx)
					return nil, err
				},
				"pay": func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
					inside <- struct{}{}
					<-leave
					return says(fmt.Sprint(ctx.Err()))(ctx, req)
				},
			},
				mcplock.Serialize(mcplock.Rules{"debit": core.Serialize(locker, "account/{arg.id}")}),
				mcplock.Idempotent(mcplock.Tools{"pay": testkit.EngineOn(t, store, idempotency.Global(), idempotency.WaitReplay(testkit.Patience))})))
			cancelOnce := func(tool string) {
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan struct{})
				go func() {
					defer close(done)
					_, _ = session.CallTool(ctx, &mcp.CallToolParams{Name: tool, Meta: mcp.Meta{mcplock.MetaKey: "k"}, Arguments: map[string]any{"id": 42}})
				}()
				testkit.Receive(t, inside, "the handler")
				cancel()
				testkit.Receive(t, done, "the client's end")
			}
			cancelOnce("debit")
			if cause := testkit.Receive(t, ended, "the handler's end"); !errors.Is(cause, context.Canceled) {
				t.Errorf("%v", cause)
			}
			testkit.Until(t, "the lock is free", func() bool { return testkit.Free(store, "account/42") })
			cancelOnce("pay")
			close(leave)
			if got := told(send(t, session, "pay", "k", `{"id":42}`)); got != "replayed <nil>" {
				t.Errorf("%q", got)
			}
		})
	}
}

func TestALostLockEndsTheHandler(t *testing.T) {
	testkit.LogTo(t)
	store := memstore.New()
	locker := testkit.LockerOn(t, store)
	var cause error
	server := serverOf(nil, mcplock.Serialize(mcplock.Rules{"debit": core.Serialize(locker, "account/{arg.id}")}))
	mcp.AddTool(server, &mcp.Tool{Name: "debit"}, func(ctx context.Context, _ *mcp.CallToolRequest, _ map[string]any) (*mcp.CallToolResult, any, error) {
		testkit.Lose(ctx, t, store)
		cause = context.Cause(ctx)
		return nil, nil, ctx.Err() // which the SDK makes a result of
	})
	got := told(send(t, inMemory(t, server), "debit", "", `{"id":42}`))
	if !errors.Is(cause, core.ErrLost) || got != "lost <nil> failed The lock on the resource was lost while the request was carried out. "+
		"Its outcome is unknown. Find out whether the request was carried out before you send it again." {
		t.Errorf("%v, %q", cause, got)
	}
}

// A server that is protected by one call takes the lock and keeps the result.
func TestProtectInstallsWhatItChecks(t *testing.T) {
	locker := testkit.Locker(t)
	var runs atomic.Int32
	server := serverOf(map[string]mcp.ToolHandler{"pay": counts(&runs), "debit": keyOf})
	rule := core.Serialize(locker, "account/{arg.id}")
	err := mcplock.Protect(t.Context(), server, mcplock.Rules{"debit": rule, "pay": rule},
		mcplock.Tools{"pay": testkit.Engine(t).With(idempotency.Under(rule))}, mcplock.KeyMeta("com.example/request"))
	if err != nil {
		t.Fatal(err)
	}
	session := inMemory(t, server)
	if got := told(send(t, session, "debit", "", `{"id":42}`)); !strings.Contains(got, "account/42") {
		t.Errorf("%s; want the lock of account/42", got)
	}
	for range 2 {
		_, err := session.CallTool(t.Context(), &mcp.CallToolParams{
			Name: "pay", Meta: mcp.Meta{"com.example/request": "k1"}, Arguments: map[string]any{"id": 42},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if n := runs.Load(); n != 1 {
		t.Errorf("%d runs for one key in _meta, want 1", n)
	}
}
