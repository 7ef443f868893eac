package idempotency_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/reason"
)

// The client's answer names neither the function that failed nor its error, so the log
// has both. The answer does not speak of locks either, since there is none.
func TestAScopeThatFailsOrFindsNothingIsLogged(t *testing.T) {
	for principal, c := range map[string]struct {
		want   reason.Reason
		logged string
	}{
		"":           {reason.NoPrincipal, "level=WARN msg=\"interlock: idempotent requests are refused, since the Scope function finds no principal"},
		"not a name": {reason.NoPrincipal, ""},
		"broken": {reason.Internal, "level=ERROR msg=\"interlock: an idempotent endpoint refuses requests, since the server is not set up for them, or a function of it fails\" " +
			"rule=pay requests=1 error=\"interlock: request refused: internal, rule=pay error=interlock: the Scope function fails: the directory is down\""},
	} {
		t.Run(string(c.want)+" "+principal, func(t *testing.T) {
			inBubble(t, func(w *world) {
				var logged bytes.Buffer
				old := slog.Default()
				slog.SetDefault(slog.New(slog.NewTextHandler(&logged, nil)))
				defer slog.SetDefault(old)
				e, n := w.engine(idempotency.Name("pay")), 0
				q := post("k")
				q.scope = principal
				for range 3 { // within a second
					w.want(serve(w.Context(), e, q, answers(200, &n)), string(c.want))
				}
				lines := strings.Count(logged.String(), "\n")
				if !strings.Contains(logged.String(), c.logged) || (c.logged == "") != (lines == 0) || lines > 1 {
					t.Errorf("logged %q", &logged)
				}
				if c.logged != "" && !strings.Contains(logged.String(), "rule=pay") {
					t.Errorf("the log does not name the endpoint: %q", &logged)
				}
				if strings.Contains(c.want.Text(), "lock") {
					t.Errorf("the client reads %q", c.want.Text())
				}
			})
		})
	}
}

// A Scope function may end because the request has ended.
func TestAScopeThatTheRequestsEndInterrupts(t *testing.T) {
	inBubble(t, func(w *world) {
		e := w.engine(idempotency.Scope(func(ctx context.Context, _ core.Request) (string, error) {
			<-ctx.Done()
			return "", ctx.Err()
		}))
		ctx, cancel := context.WithTimeout(w.Context(), time.Second)
		defer cancel()
		n := 0
		w.want(serve(ctx, e, post("k"), answers(200, &n)), string(reason.Deadline))
		ctx, cancel = context.WithCancel(w.Context())
		cancel()
		w.want(serve(ctx, e, post("k"), answers(200, &n)), string(reason.Canceled))
	})
}
