// Package interlock is the overview of a toolkit that keeps two requests from touching the
// same thing at the same time. It has no code.
//
// A rule is declared once and put around handlers, on one line, in each protocol:
//
//	store, err := redisstore.New(rdb)               // any redis.UniversalClient but a Ring
//	locker, err := core.New(store)                  // 30 s leases, renewed at a third
//	debit := core.Serialize(locker, "account/{id}") // one rule, every protocol
//
//	mux.Handle("POST /accounts/{id}/debit", httplock.Guard(debit)(handler))
//	r.POST("/accounts/:id/debit", ginlock.Guard(debit), handler)
//	e.POST("/accounts/:id/debit", handler, echolock.Guard(debit))
//	rules, err := grpclock.FromProto(locker)        // an option in the proto
//	grpc.NewServer(grpclock.Protect(rules, nil).ServerOptions()...)
//
// Values are compared as they come. Where a handler takes several texts for one
// resource (42 and 042, a UUID in upper case), give the placeholder a form,
// account/{id:int}, or each text has its own lock; see core.Form. And let the
// handler read the value where the template does: for {query.id} by
// r.URL.Query().Get("id"), not by r.FormValue("id").
//
// The same rule for REST and gRPC yields the same lock key, so a REST debit and an RPC debit
// of one account exclude each other.
//
// # Packages
//
//   - core: the lock (Locker, Lease) and the rule (Guard); start here
//   - core/idempotency: one stored answer for each idempotency key
//   - core/redisstore: locks and records in Redis, on github.com/redis/go-redis/v9
//   - core/pgstore: locks and records in PostgreSQL, on database/sql
//   - core/quorum: locks on a majority of independent masters (Redlock)
//   - core/casstore: locks on a consensus system
//   - core/memstore: locks and records in memory, for unit tests
//   - core/fencing: resources that refuse an outdated holder
//   - httplock, ginlock, echolock, grpclock: one thin middleware per framework
//   - otel (package otellock): spans and metrics for OpenTelemetry
//   - cmd/interlock: the locks of all processes, on a terminal
//   - cmd/interlockvet: code that breaks a rule that the compiler cannot check, for go vet
//   - examples/payments: a demonstration, as a program to run
//
// Separate modules: asynqlock, connectlock, core/casstore, core/quorum, etcdstore,
// gocronlock, mcplock, natsstore, pgxstore, riverlock, tuslock, watermilllock, zkstore.
//
// The documents are at https://github.com/interlock-go/interlock/tree/main/docs.
package interlock
