// Package handler has handlers that do not fit their middleware.
package handler

import (
	"net/http"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/httplock"
)

// Fault 23: the handler reads another value than the rule.
func report(w http.ResponseWriter, r *http.Request) {
	_ = r.FormValue("year") // want `handler: the rule locks {query.year}, and r.FormValue prefers the body; read it with r.URL.Query\(\).Get\("year"\)`
	_ = r.FormValue("format")
	_ = r.URL.Query().Get("year")
}

func search(w http.ResponseWriter, r *http.Request) { _ = r.FormValue("year") } // without a rule

func routes(mux *http.ServeMux, locker *core.Locker, engine *idempotency.Engine) {
	rule := core.Serialize(locker, "report/{query.year}")
	mux.Handle("POST /reports", httplock.Guard(rule)(http.HandlerFunc(report)))
	mux.HandleFunc("GET /reports", search)

	// Fault 24: a time limit answers while the handler runs.
	once, pay := httplock.Idempotent(engine.With(idempotency.Under(rule))), http.HandlerFunc(search)
	mux.Handle("POST /a", once(http.TimeoutHandler(pay, time.Second, "late"))) // want `handler: http.TimeoutHandler inside Idempotent answers 503 while the handler runs, .*; put it around Idempotent`
	mux.Handle("POST /b", http.TimeoutHandler(httplock.Idempotent(engine)(pay), time.Second, "late"))
}
