package riverlock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/riverqueue/river"

	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/httplock"
)

// carryOn is a periodic job without arguments.
type carryOn struct{}

func (carryOn) Kind() string { return "carry-orders-on" }

// carryOnWorker carries orders on that no client sends again.
type carryOnWorker struct {
	river.WorkerDefaults[carryOn]
	engine    *idempotency.Engine
	olderThan time.Duration
}

func (w *carryOnWorker) Work(ctx context.Context, _ *river.Job[carryOn]) error {
	var failed error
	for a, err := range w.engine.Abandoned(ctx, w.olderThan) {
		if err == nil {
			fmt.Println("carrying on after the step", a.Step)
			err = w.engine.TakeOver(ctx, a.Ticket, func(ctx context.Context) (endpoint.Response, error) { return order(ctx, "", true) })
		}
		failed = errors.Join(failed, err) // one order that fails keeps no other from its end
	}
	return failed
}

// order is the handler and the job. The first step stores the input, which a job does not have.
func order(ctx context.Context, input string, mailServer bool) (endpoint.Response, error) {
	input, err := idempotency.Step(ctx, "input", func(context.Context) (string, error) { return input, nil })
	if err != nil {
		return endpoint.Response{}, err
	}
	receipt, err := idempotency.Step(ctx, "charge", func(context.Context) (string, error) {
		fmt.Println("charging for", input) // with idempotency.DownstreamKey(ctx)
		return "receipt 1", nil
	})
	if err != nil {
		return endpoint.Response{}, err
	}
	_, err = idempotency.Step(ctx, "mail", func(context.Context) (bool, error) {
		if !mailServer {
			return false, errors.New("the mail server is down")
		}
		fmt.Println("mailing", receipt, "for", input)
		return true, nil
	})
	return endpoint.Response{Status: http.StatusCreated, Body: []byte(receipt)}, err
}

// A periodic job of River carries requests to their end, after a crash or a failure between two steps.
func Example_steps() {
	engine, err := idempotency.New(memstore.New(), idempotency.Global(), idempotency.Name("orders"), idempotency.Resumable())
	if err != nil {
		log.Fatal(err)
	}
	defer engine.Close(context.Background())
	handler := httplock.Idempotent(engine)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, err := order(r.Context(), "a book", false)
		if err != nil {
			http.Error(w, "later", http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(answer.Status)
		_, _ = w.Write(answer.Body)
	}))
	send := func() {
		r, w := httptest.NewRequest(http.MethodPost, "/orders", nil), httptest.NewRecorder()
		r.Header.Set("Idempotency-Key", "order-17")
		handler.ServeHTTP(w, r)
		fmt.Println(w.Code, w.Body)
	}
	send()

	// In a service: river.AddWorker(workers, worker), and in river.Config
	//
	//	PeriodicJobs: []*river.PeriodicJob{river.NewPeriodicJob(river.PeriodicInterval(time.Minute),
	//		func() (river.JobArgs, *river.InsertOpts) { return carryOn{}, nil }, nil)},
	worker := &carryOnWorker{engine: engine} // with olderThan: time.Minute
	if err := worker.Work(context.Background(), &river.Job[carryOn]{}); err != nil {
		log.Fatal(err)
	}
	send() // a client that does come again gets the answer
	// Output:
	// charging for a book
	// 503 later
	//
	// carrying on after the step charge
	// mailing receipt 1 for a book
	// 201 receipt 1
}
