package idemcases

import (
	"net/http"
	"strings"

	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/reason"
	"github.com/interlock-go/interlock/internal/testkit"
)

// foreignCases are the cases of protocols inside HTTP.
var foreignCases = []row{
	{name: "a call whose failures have status 200 is refused", http: true, logs: true, run: func(f *fixture) {
		logged := testkit.LogTo(f)
		s := f.site(f.engine(idempotency.Optional()), func(w http.ResponseWriter, _ *http.Request) { text(w, "ran") })
		for _, kind := range []string{
			"application/grpc", "application/grpc+proto", "Application/gRPC-Web-Text; charset=utf-8", "application/connect+json",
		} {
			s.send(http.MethodPost, path, "", testkit.WithHeader("Content-Type", kind)).
				WantProblem(f, 415, string(reason.ContentType), "")
		}
		if n := s.Runs(); n != 0 {
			f.Errorf("%d runs", n)
		}
		if text := logged.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "level=WARN") ||
			!strings.Contains(text, "put grpclock.Protect into the gRPC server") {
			f.Errorf("logged is %q", text)
		}
		// A call without a key passes where keys are optional, and so do other types.
		without := func(r *http.Request) { r.Header.Del(idempotency.KeyHeader) }
		s.send(http.MethodPost, path, "", testkit.WithHeader("Content-Type", "application/grpc"), without).WantOwn(f, 200, "ran")
		s.send(http.MethodPost, path, "", testkit.WithHeader("Content-Type", "application/json"), key("other")).WantOwn(f, 200, "ran")
	}},
}
