package idempotency_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/reason"
)

func TestARefusedKeySaysWhatIsAccepted(t *testing.T) {
	for _, key := range []string{"a b", "a,b", "{0f8fad5b-d9cb-469f-a165-70867728950e}"} {
		if _, err := idempotency.ParseKey([]string{key}); !errors.Is(err, idempotency.ErrKeyMalformed) ||
			!strings.Contains(err.Error(), "double quotes") {
			t.Errorf("%q: %v", key, err)
		}
		if got, err := idempotency.ParseKey([]string{`"` + key + `"`}); got != key || err != nil {
			t.Errorf("%q in quotes: %q, %v", key, got, err)
		}
	}
	// The text is the detail of the problem in HTTP and the message of the status in gRPC.
	for _, want := range []string{"255", "letters", "double quotes", "backslash"} {
		if text := reason.KeyMalformed.Text(); !strings.Contains(text, want) {
			t.Errorf("%q does not say %q", text, want)
		}
	}
}

func TestQueryIsASafeMethod(t *testing.T) {
	e, err := idempotency.New(newFake(), idempotency.Global())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = e.Close(context.Background()) }()
	q := post("")
	q.method, q.key = "QUERY", nil
	passed := false
	v := e.Do(t.Context(), q, idempotency.Handler{
		Run: func(context.Context, *idempotency.Attempt) (idempotency.Response, bool) {
			t.Error("it is treated as a request with effects")
			return idempotency.Response{}, false
		},
		Pass: func(context.Context) bool { passed = true; return true },
	})
	if v.Refusal != nil || !passed {
		t.Errorf("%+v", v)
	}
}
