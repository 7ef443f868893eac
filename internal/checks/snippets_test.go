package checks_test

import (
	"context"
	"crypto/tls"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/go-chi/chi/v5"
	"github.com/labstack/echo/v4"
	"github.com/redis/go-redis/v9"
	"google.golang.org/grpc"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/fencing"
	"github.com/interlock-go/interlock/core/fleet"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/idempotency/once"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/core/pgstore"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/echolock"
	"github.com/interlock-go/interlock/examples/grpc/bankpb"
	"github.com/interlock-go/interlock/ginlock"
	"github.com/interlock-go/interlock/grpclock"
	"github.com/interlock-go/interlock/httplock"
	otellock "github.com/interlock-go/interlock/otel"
)

// The code of the README and of the package comments that stands in no program
// or Example is here, so that it is compiled. docs_test.go compares.

func _() {
	rdb := redis.NewUniversalClient(&redis.UniversalOptions{Addrs: []string{"localhost:6379"}})
	store, err := redisstore.New(rdb)
	if err != nil {
		log.Fatal(err)
	}
	locker, err := core.New(store)
	if err != nil {
		log.Fatal(err)
	}
	debit := core.Serialize(locker, "account/{id}")

	mux := http.NewServeMux()
	mux.Handle("POST /accounts/{id}/debit", httplock.Guard(debit)(http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) {
			token := core.LeaseFromContext(r.Context()).Token() // fences your writes
			fmt.Fprintln(w, "alone with account", r.PathValue("id"), "token", token)
		})))
}

// Of docs/sharing.md, and of the README's first screen.
func _(locker *core.Locker, mux *http.ServeMux, reports, export, handler, app http.Handler) {
	core.Serialize(locker, "account/{id:int}", core.ShareReads()) // GET together, the others alone
	core.AtMost(locker, 10, "tenant/{header.X-Tenant}")           // at most ten at once for each tenant

	perTenant := core.AtMost(locker, 10, "tenant/{header.X-Tenant}", core.Wait(time.Second))
	mux.Handle("POST /reports", httplock.Guard(perTenant)(reports))

	account := core.Serialize(locker, "account/{id}", core.ShareReads())
	mux.Handle("/accounts/{id}", httplock.Guard(account)(handler))

	planOf := func(context.Context, core.Request) (int, error) { return 3, nil }
	byPlan := core.AtMostFunc(locker, planOf, "tenant/{header.X-Tenant}")
	mux.Handle("GET /reports", httplock.Guard(byPlan)(reports))

	ofTenant := httplock.Guard(core.AtMost(locker, 3, "export/tenant/{t}"))
	inAll := httplock.Guard(core.AtMost(locker, 20, "export"))
	mux.Handle("POST /tenants/{t}/exports", ofTenant(inAll(export)))

	save := core.Serialize(locker, "document/{id}", core.Newest())
	mux.Handle("PUT /documents/{id}", httplock.Guard(save)(handler))

	mux.Handle("/", httplock.Guard(core.Share(locker, "schema"))(app))
}

func _(ctx context.Context, locker *core.Locker, migrate func(context.Context) error) error {
	err := locker.Do(ctx, "schema", migrate)
	return err
}

// Of docs/fencing.md.
func _(db *sql.DB, mux *http.ServeMux, handler http.Handler) {
	fences := fencing.Table{}
	debit := core.Fenced("account/{id:int}", fences.Fence(db))
	mux.Handle("POST /accounts/{id}/debit", httplock.Guard(debit)(handler))
}

func _(locker *core.Locker, mux *http.ServeMux, debit http.Handler) {
	inTenant := httplock.Guard(core.Share(locker, "tenant/{t}"))
	account := httplock.Guard(core.Serialize(locker, "tenant/{t}/account/{id}"))
	mux.Handle("POST /tenants/{t}/accounts/{id}/debit", inTenant(account(debit)))
}

type partner interface {
	Call(ctx context.Context, order string) error
}

func _(ctx context.Context, locker *core.Locker, client partner, order string) error {
	lease, err := locker.Permit(ctx, "partner/acme", 3, core.Wait(5*time.Second))
	if err != nil {
		return err // core.ErrFull: three calls are under way
	}
	defer lease.Release(ctx)
	return client.Call(lease.Context(), order)
}

func _(ctx context.Context, locker *core.Locker) error {
	lease, err := locker.Lock(ctx, "account/42")
	if err != nil {
		return err
	}
	defer lease.Release(ctx)
	return nil
}

func _(locker *core.Locker, mux *http.ServeMux, handler http.Handler) {
	debit := core.Serialize(locker, "account/{id:int}")
	mux.Handle("POST /accounts/{id}/debit", httplock.Guard(debit)(handler))
	report := httplock.Render(func(w http.ResponseWriter, r *http.Request, refusal *core.Refusal) {
		slog.WarnContext(r.Context(), "refused", "refusal", refusal)
		httplock.Problem(w, r, refusal)
	})
	mux.Handle("POST /accounts/{id}/debit", httplock.Guard(debit, report)(handler))
}

func _(principal func(context.Context, core.Request) (string, error)) error {
	store := memstore.New()
	locker, err := core.New(store)
	if err != nil {
		return err
	}
	engine, err := idempotency.New(store, idempotency.Scope(principal))
	store.Take("account/42", time.Minute)
	store.TakeClaims(time.Minute)
	_, _ = locker, engine
	return err
}

func _(locker *core.Locker) {
	transfer := core.Serialize(locker, "account/{from}", core.And("account/{to}"))
	_ = transfer
	core.Serialize(locker, "account/{from:int}", core.And("account/{to:int}")) // a transfer, without a deadlock
}

// Of the README: payments.
func _(ctx context.Context, db *sql.DB) error {
	store, err := pgstore.New(db)
	if err != nil {
		return err
	}
	engine, err := idempotency.New(store, idempotency.Transactional(), idempotency.Scope(core.FromContext("user")))
	if err != nil {
		return err
	}
	_ = engine
	err = idempotency.MarkEffect(ctx) // in the handler, before money moves
	return err
}

func _(ctx context.Context, locker *core.Locker, settle func(context.Context) error) {
	err := locker.Do(ctx, "account/42", func(ctx context.Context) error {
		return settle(ctx)
	})
	_ = err
}

func _(addrs []string) {
	rdb := redis.NewUniversalClient(&redis.UniversalOptions{Addrs: addrs})
	_ = rdb
}

func _(locker *core.Locker, r *gin.Engine, e *echo.Echo, handle gin.HandlerFunc, serve echo.HandlerFunc) {
	debit := core.Serialize(locker, "account/{id}")
	{
		handler := handle
		r.POST("/accounts/:id/debit", ginlock.Guard(debit), handler)
	}
	handler := serve
	e.POST("/accounts/:id/debit", handler, echolock.Guard(debit))
}

func _(locker *core.Locker, r chi.Router, handler http.HandlerFunc) {
	debit := core.Serialize(locker, "account/{id}")
	r.With(httplock.Guard(debit, httplock.RawParams())).Post("/accounts/{id}/debit", handler)
	_ = http.TimeoutHandler(httplock.Guard(debit)(handler), 10*time.Second, "")
}

func _(
	locker *core.Locker, bank bankpb.BankServer,
	authenticate grpc.UnaryServerInterceptor,
) (err error) {
	rules, err := grpclock.FromProto(locker)
	if err != nil {
		return err
	}
	protection := grpclock.Protect(rules, nil)
	server := grpc.NewServer(
		grpc.ChainUnaryInterceptor(authenticate, protection.Unary()),
	)
	bankpb.RegisterBankServer(server, bank)
	err = protection.Validate(server)
	_ = grpclock.Rules{"/vendor.v1.Bank/Debit": core.Serialize(locker, "account/{account_id}")}
	{
		rules := grpclock.Rules{"/vendor.v1.Bank/Debit": core.Serialize(locker, "account/{account_id}")}
		_ = rules
	}
	_ = grpc.WithChainUnaryInterceptor(grpclock.UnaryClientIdempotencyKey(), grpclock.UnaryClientRetry())
	_ = grpc.NewServer(grpclock.Protect(rules, nil).ServerOptions()...)
	return err
}

func _(store core.Store) error {
	observer, err := otellock.New()
	if err != nil {
		return err
	}
	locker, err := core.New(store, core.WithObserver(observer))
	_ = locker
	return err
}

func _(
	locker *core.Locker, engine *idempotency.Engine, r *gin.Engine, e *echo.Echo, handle gin.HandlerFunc, handler echo.HandlerFunc,
) {
	debit := idempotency.Under(core.Serialize(locker, "account/{id}"))
	e.POST("/accounts/:id/debit", handler, echolock.Idempotent(engine.With(debit)))
	{
		handler := handle
		r.POST("/accounts/:id/debit", ginlock.Idempotent(engine.With(debit)), handler)
	}
	pay := engine.With(idempotency.Under(core.Serialize(locker, "account/{id}")))
	_ = grpclock.Methods{"/bank.v1.Bank/Pay": pay}
}

// bank is the API of another company that the documents pay through.
var bank interface {
	Transfer(ctx context.Context, amount int64, reference string) error
}

func pay(ctx context.Context, amount int64) error {
	if err := idempotency.MarkEffect(ctx); err != nil {
		return err // the effect must not happen: answer 503
	}
	return bank.Transfer(ctx, amount, idempotency.DownstreamKey(ctx))
}

// hotel is another one.
var hotel interface {
	Book(ctx context.Context) (room string, err error)
}

func order(ctx context.Context, amount int64) (string, error) {
	_, err := idempotency.Step(ctx, "charge", func(ctx context.Context) (bool, error) {
		return true, bank.Transfer(ctx, amount, idempotency.DownstreamKey(ctx))
	})
	if err != nil {
		return "", err // answer with a failure: the next attempt goes on here
	}
	return idempotency.Step(ctx, "book", hotel.Book, idempotency.Once())
}

// Of docs/idempotency.md: a job carries requests on.
func _(ctx context.Context, engine *idempotency.Engine, carryOn func(context.Context) (endpoint.Response, error)) (failed error) {
	for a, err := range engine.Abandoned(ctx, time.Minute) {
		if err == nil {
			err = engine.TakeOver(ctx, a.Ticket, carryOn)
		}
		failed = errors.Join(failed, err)
	}
	return failed
}

// Of docs/across-services.md: the lock of a handler goes on in a worker.
func _(
	ctx context.Context, locker *core.Locker, r *http.Request, lease *core.Lease, text string, send func(context.Context, string) error,
) error {
	{
		ticket, err := core.HandOver(r.Context(), time.Minute) // the lock of the guard; or lease.HandOver
		if err == nil {
			err = send(r.Context(), ticket.Text()) // a secret of at most 300 bytes
		}
		_ = err
	}
	ticket, err := core.ParseTicket(text)
	if err == nil {
		lease, err = locker.TakeOver(ctx, ticket, core.OrLock(), core.Wait(time.Second))
	}
	_ = lease
	return err
}

// Of docs/across-services.md: a message that is delivered again.
func _(
	ctx context.Context, engine *idempotency.Engine, retryIn func(time.Duration) error, sendReports func(context.Context) error,
	charge func(ctx context.Context, order string) (string, error),
) error {
	var message struct{ ID, Order string }
	receipt, err := once.Do(ctx, engine, "charge/"+message.ID, message.Order, charge)
	_ = receipt
	var stored *once.StoredError
	var refused *once.RefusedError
	switch {
	case err == nil: // the result, of this call or of an earlier one
	case errors.As(err, &stored): // the answer is an error, and stays one
	case once.Permanent(err): // put the message aside: the outcome is unknown, the key was used for other work
	case errors.As(err, &refused): // not now: another process is at it, the lock is held, the store is down
		return retryIn(refused.RetryAfter)
	default: // the function failed; the next call runs it again
	}
	{
		err := once.Per(ctx, engine, "send-reports", 24*time.Hour, sendReports)
		_ = err
	}
	return nil
}

func _(ctx context.Context, amount int64) error {
	_, _ = pay, order
	err := bank.Transfer(ctx, amount, idempotency.DownstreamKey(ctx))
	return err
}

// Of docs/idempotency-clients.md.
func _(ctx context.Context) (*http.Client, context.Context) {
	client := &http.Client{Transport: &httplock.Transport{}}
	ctx = idempotency.WithKey(ctx, "order-17/payment") // else each request has a new UUID
	return client, ctx
}

// Of docs/idempotency-clients.md: a loop around a client.
func _(ctx context.Context, err error) context.Context {
	var failed *idempotency.RequestError
	if errors.As(err, &failed) && errors.Is(err, idempotency.ErrOutcomeUnknown) {
		ctx = idempotency.WithKey(ctx, failed.Key) // ask again with the same key
	}
	return ctx
}

// Of docs/across-services.md: calls of several goroutines.
func _(ctx context.Context, items []item, reserve func(context.Context, item) error) {
	var group tasks
	var order struct{ Items []item }
	order.Items = items
	for _, item := range order.Items {
		group.Go(func() error { return reserve(idempotency.WithCall(ctx, item.SKU), item) })
	}
}

type item struct{ SKU string }

// tasks is like golang.org/x/sync/errgroup.
type tasks struct{}

func (tasks) Go(func() error) {}

// Of docs/managed.md: a Cluster with one endpoint.
func _() redis.UniversalClient {
	rdb := redis.NewUniversalClient(&redis.UniversalOptions{
		Addrs:         []string{"clustercfg.name.example.com:6379"},
		IsClusterMode: true,
		TLSConfig:     &tls.Config{MinVersion: tls.VersionTLS12},
	})
	return rdb
}

// Of the option Service of core/idempotency.
func _(store idempotency.Store, user core.RequestFunc) error {
	engine, err := idempotency.New(store, idempotency.Service("ledger"), idempotency.Scope(user))
	_ = engine
	return err
}

// Of docs/across-services.md and docs/operations.md.
func _(ctx context.Context, all *fleet.Fleet, store core.Store) error {
	for lock, err := range all.Follow(ctx, "leader/mailer") {
		if err == nil && lock.Held == 1 {
			log.Print("the leader is ", lock.Holders[0].Locker.Host)
		}
	}
	observer, err := otellock.New() // by the global providers of OpenTelemetry
	if err != nil {
		return err
	}
	locker, err := core.New(store, core.WithObserver(observer))
	_ = locker
	return err
}
