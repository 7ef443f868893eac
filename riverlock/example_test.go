package riverlock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/riverlock"
)

// chargeWorker is a worker of River.
type chargeWorker struct {
	river.WorkerDefaults[charge]
	perAccount *core.Guard
	engine     *idempotency.Engine
}

func (w *chargeWorker) Middleware(*rivertype.JobRow) []rivertype.WorkerMiddleware {
	return []rivertype.WorkerMiddleware{riverlock.Guard(w.perAccount), riverlock.Idempotent(w.engine)}
}

func (w *chargeWorker) Work(ctx context.Context, _ *river.Job[charge]) error {
	fmt.Printf("paying under the lock of %s\n", core.LeaseFromContext(ctx).Key())
	return nil
}

// A job waits for the lock of its account without a worker, and is carried out once.
func Example() {
	store := memstore.New() // in place of redisstore.New or pgstore.New
	locker, err := core.New(store)
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close(context.Background())
	engine, err := idempotency.New(store, idempotency.Global())
	if err != nil {
		log.Fatal(err)
	}
	defer engine.Close(context.Background())
	worker := &chargeWorker{perAccount: core.Serialize(locker, "account/{account}", core.Wait(0)), engine: engine}

	// A client of River calls the worker so: river.AddWorker(workers, worker).
	job := &river.Job[charge]{JobRow: &rivertype.JobRow{
		ID: 1, Kind: "charge", EncodedArgs: []byte(`{"account": "42"}`), CreatedAt: time.Now(),
	}, Args: charge{"42"}}
	attempt := func() {
		work := func(ctx context.Context) error { return worker.Work(ctx, job) }
		chain := worker.Middleware(job.JobRow)
		err := chain[0].Work(context.WithValue(context.Background(), updatesKey{}, map[string]any{}), job.JobRow, func(ctx context.Context) error {
			return chain[1].Work(ctx, job.JobRow, work)
		})
		var snooze *river.JobSnoozeError
		switch {
		case errors.As(err, &snooze):
			fmt.Println("snoozed")
		case err == nil:
			fmt.Println("completed")
		}
	}
	free := store.Take("account/42", time.Hour) // another process has the account
	attempt()
	free()
	attempt()
	attempt() // River works it again
	// Output:
	// snoozed
	// paying under the lock of account/42
	// completed
	// completed
}

// The code of the package comment that stands in no Example.
func _(locker *core.Locker) {
	perAccount := core.Serialize(locker, "account/{account}", core.Wait(0))
	perTenant := core.AtMost(locker, 3, "export/{tenant}", core.Wait(0))
	_, _ = perAccount, perTenant
}
