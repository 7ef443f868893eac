//go:build long

package openapi

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/pb33f/libopenapi"
	validator "github.com/pb33f/libopenapi-validator"
	"github.com/pb33f/libopenapi-validator/config"
	"github.com/pb33f/libopenapi/datamodel"
	v3 "github.com/pb33f/libopenapi/datamodel/high/v3"

	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/reason"
	"github.com/interlock-go/interlock/httplock"
)

const (
	fragment = "../../docs/openapi.yaml"
	service  = "testdata/service.yaml" // refers to all of the fragment
)

// The routes of testdata/service.yaml: locks, and idempotent endpoints in each form.
const (
	locks     = "/accounts/{id}/debit"
	draft     = "/payments"
	agentic   = "/checkout_sessions"
	universal = "/checkout-sessions"
)

var profiles = map[string]reason.Profile{
	draft: reason.IETFDraft, agentic: reason.AgenticCommerce, universal: reason.UniversalCommerce,
}

// TestTheDocumentSaysWhatIsAnswered has each case on each route that it is for. A part of the
// document that no case has produced is an error as well.
func TestTheDocumentSaysWhatIsAnswered(t *testing.T) {
	log := slog.Default()
	slog.SetDefault(slog.New(slog.DiscardHandler))
	defer slog.SetDefault(log)
	doc, model := read(t, service)
	// Of answers each header field and each member has to be in the document; of requests not.
	answers, errs := validator.NewValidator(doc, config.WithStrictMode())
	if errs != nil {
		t.Fatal(errs)
	}
	defer answers.Release()
	requests, errs := validator.NewValidator(doc)
	if errs != nil {
		t.Fatal(errs)
	}
	defer requests.Release()
	said, again := documented(t, model), retried(t)
	seen := map[answer]bool{}
	for _, c := range cases {
		for _, route := range c.routes() {
			t.Run(fmt.Sprintf("%s on %s", c.name(), route), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := newSite(t, c, route)
					got := s.run()
					s.close()
					if c.want == reason.Canceled { // the client has gone
						if got.wrote {
							t.Errorf("%d %s; want no answer", got.Code, got.Body)
						}
						return
					}
					a := answer{route, got.Code, wordOf(t, route, got.ResponseRecorder, c.want)}
					if seen[a] = true; !said[a] {
						t.Errorf("%+v is not in the document", a)
					}
					res := got.Result()
					retry := slices.Contains(again, string(c.want))
					if told := res.Header.Get("Retry-After") != ""; told != retry {
						t.Errorf("Retry-After %q; the document says %v", res.Header.Get("Retry-After"), retry)
					}
					if replayed := res.Header.Get("Idempotent-Replayed") != ""; replayed != c.replay {
						t.Errorf("Idempotent-Replayed is there: %v", replayed)
					}
					if ok, errs := answers.ValidateHttpResponse(got.request, res); !ok {
						for _, err := range errs {
							t.Errorf("%s: %s %+v", err.Message, err.Reason, err.SchemaValidationErrors)
						}
					}
					badKey := c.want == reason.KeyMissing || c.want == reason.KeyMalformed
					if ok, errs := requests.GetParameterValidator().ValidateHeaderParams(got.request); ok == badKey {
						t.Errorf("the document accepts the key: %v, %v", ok, errs)
					}
				})
			})
		}
	}
	for a := range said {
		if !seen[a] {
			t.Errorf("%+v is in the document, and no case produces it", a)
		}
	}
}

// answer is a way to be answered. The word is the type of a problem, or the code of an error
// under a profile; it is empty for the handler's own answer.
type answer struct {
	route  string
	status int
	word   string
}

// wordOf returns the word of an answer, and compares its text with the text of the reason.
func wordOf(t *testing.T, route string, w *httptest.ResponseRecorder, want reason.Reason) string {
	if want == "" {
		return ""
	}
	var body struct{ Type, Code, Detail, Message, Content string }
	if err := json.Unmarshal(w.Body.Bytes(), &body); err != nil {
		t.Fatalf("%d %q: %v", w.Code, w.Body, err)
	}
	word, text := body.Type, body.Detail
	if profiles[route] != reason.IETFDraft {
		word, text = body.Code, body.Message+body.Content
	}
	if text != want.Text() {
		t.Errorf("%d %s; want %s", w.Code, w.Body, want)
	}
	return word
}

// read reads the document, and its references.
func read(t *testing.T, path string) (libopenapi.Document, *v3.Document) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := libopenapi.NewDocumentWithConfiguration(text, &datamodel.DocumentConfiguration{
		BasePath: "testdata", SpecFilePath: path, AllowFileReferences: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	model, err := doc.BuildV3Model()
	if err != nil {
		t.Fatal(err)
	}
	return doc, &model.Model
}

// documented are the answers that the document has.
func documented(t *testing.T, model *v3.Document) map[answer]bool {
	t.Helper()
	said := map[answer]bool{}
	for route, item := range model.Paths.PathItems.FromOldest() {
		for code, response := range item.Post.Responses.Codes.FromOldest() {
			var status int
			if _, err := fmt.Sscan(code, &status); err != nil {
				t.Fatal(err)
			}
			if status == http.StatusCreated {
				said[answer{route, status, ""}] = true
				continue
			}
			for _, media := range response.Content.FromOldest() {
				properties := media.Schema.Schema().Properties
				word := "type"
				if profiles[route] != reason.IETFDraft {
					word = "code"
				}
				for _, value := range properties.GetOrZero(word).Schema().Enum {
					said[answer{route, status, value.Value}] = true
				}
			}
		}
	}
	if len(said) < 100 {
		t.Fatalf("only %d answers found in the document: the test has gone blind", len(said))
	}
	return said
}

// retried are the reasons for which the document says that there is Retry-After.
func retried(t *testing.T) (reasons []string) {
	t.Helper()
	_, model := read(t, fragment)
	if err := model.Components.Headers.GetOrZero("Retry-After").Extensions.GetOrZero("x-interlock-reasons").Decode(&reasons); err != nil {
		t.Fatal(err)
	}
	return reasons
}

// TestTheDocumentIsOpenAPI validates the fragment, and a service that refers to it.
func TestTheDocumentIsOpenAPI(t *testing.T) {
	for _, path := range []string{fragment, service} {
		doc, _ := read(t, path)
		judge, errs := validator.NewValidator(doc)
		if errs != nil {
			t.Fatal(errs)
		}
		if ok, errs := judge.ValidateDocument(); !ok {
			for _, err := range errs {
				t.Errorf("%s: %s: %s %+v", path, err.Message, err.Reason, err.SchemaValidationErrors)
			}
		}
		judge.Release()
	}
}

// TestEachReasonHasItsText compares the types of problems with package reason.
func TestEachReasonHasItsText(t *testing.T) {
	_, model := read(t, fragment)
	for _, proxy := range model.Components.Schemas.GetOrZero("ProblemType").Schema().OneOf {
		schema := proxy.Schema()
		why, ours := strings.CutPrefix(schema.Const.Value, "urn:interlock:problem:")
		if want := reason.Reason(why).Text(); !ours || schema.Description != want {
			t.Errorf("%s: %q; want %q", schema.Const.Value, schema.Description, want)
		}
	}
}

// exchange is a request with its answer.
type exchange struct {
	*httptest.ResponseRecorder
	request *http.Request
	wrote   bool
}

func (e *exchange) WriteHeader(status int) {
	e.wrote = true
	e.ResponseRecorder.WriteHeader(status)
}

func (e *exchange) Write(b []byte) (int, error) {
	e.wrote = true
	return e.ResponseRecorder.Write(b)
}

// handler is the handler of an application.
func (s *site) handler() http.Handler {
	mux := http.NewServeMux()
	if s.route == locks {
		mux.Handle("POST "+locks, httplock.Guard(s.guard)(http.HandlerFunc(s.serve)))
		return mux
	}
	mux.Handle("POST "+s.route, httplock.Idempotent(s.engine)(http.HandlerFunc(s.serve)))
	return mux
}

// send sends a request, and returns its answer.
func (s *site) send(change ...func(*http.Request)) *exchange {
	r := httptest.NewRequestWithContext(s.Context(), http.MethodPost, strings.ReplaceAll(s.route, "{id}", "1"), strings.NewReader("{}"))
	r.Header.Set("X-Account", "1")
	r.Header.Set("X-User", "alice")
	r.Header.Set("Idempotency-Key", "8e03978e-40d5-43dd-bc93-6894a57f9324")
	for _, f := range change {
		f(r)
	}
	e := &exchange{ResponseRecorder: httptest.NewRecorder(), request: r}
	s.mux.ServeHTTP(e, r)
	return e
}

// broken is a body that cannot be read.
type broken struct{ err error }

func (b broken) Read([]byte) (int, error) { return 0, b.err }

func body(r io.Reader) func(*http.Request) {
	return func(req *http.Request) { req.Body, req.ContentLength = io.NopCloser(r), 2 }
}

func header(name, value string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set(name, value) }
}

// TestTheDocumentAcceptsTheKeysThatTheEndpointReads compares the pattern of the parameter
// with the parser, over each character, alone and in quotes, and at the limit of the length.
func TestTheDocumentAcceptsTheKeysThatTheEndpointReads(t *testing.T) {
	_, model := read(t, fragment)
	pattern := regexp.MustCompile(model.Components.Parameters.GetOrZero("Idempotency-Key").Schema.Schema().Pattern)
	keys := []string{"", `""`, `"`, `"a`, `"a"b`, `"a";b=1`, `a"`, `"\a"`, `"\`, `"\\"`, `"\""`}
	for c := byte('!'); c <= '~'; c++ {
		keys = append(keys, "k"+string(rune(c)), `"`+string(rune(c))+`"`)
	}
	for _, n := range []int{1, endpoint.MaxKey, endpoint.MaxKey + 1} {
		keys = append(keys, strings.Repeat("k", n), `"`+strings.Repeat(" ", n)+`"`, `"`+strings.Repeat(`\"`, n)+`"`)
	}
	for _, key := range keys {
		_, err := endpoint.ParseKey([]string{key})
		if accepted := pattern.MatchString(key); accepted != (err == nil) {
			t.Errorf("%q: the document accepts it: %v; the endpoint says %v", key, accepted, err)
		}
	}
}
