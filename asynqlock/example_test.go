package asynqlock_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/hibiken/asynq"

	"github.com/interlock-go/interlock/asynqlock"
	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/once"
	"github.com/interlock-go/interlock/core/memstore"
)

// A producer that does not know whether its task was enqueued enqueues it again. The
// payment is made once.
func Example() {
	srv, err := miniredis.Run() // in place of your Redis
	if err != nil {
		log.Fatal(err)
	}
	defer srv.Close()
	queue := asynq.RedisClientOpt{Addr: srv.Addr()}

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

	charge := func(ctx context.Context, task *asynq.Task) error {
		if err := idempotency.MarkEffect(ctx); err != nil {
			return err
		}
		fmt.Printf("paying %s under the lock of %s\n", task.Payload(), core.LeaseFromContext(ctx).Key())
		return nil
	}

	perAccount := core.Serialize(locker, "account/{account}")
	mux := asynq.NewServeMux()
	mux.Use(asynqlock.Idempotent(engine.With(idempotency.Under(perAccount))))
	mux.HandleFunc("charge", charge)
	server := asynq.NewServer(queue, asynq.Config{
		RetryDelayFunc: asynqlock.RetryDelay(asynq.DefaultRetryDelayFunc),
		IsFailure:      asynqlock.IsFailure,
		LogLevel:       asynq.FatalLevel,
	})
	if err := server.Start(mux); err != nil {
		log.Fatal(err)
	}
	defer server.Shutdown()

	client, inspector := asynq.NewClient(queue), asynq.NewInspector(queue)
	defer client.Close()
	defer inspector.Close()
	for range 2 {
		task := asynq.NewTaskWithHeaders("charge", []byte("30 EUR"), map[string]string{"account": "42"})
		if _, err := client.Enqueue(task, asynq.TaskID("order-7")); err != nil {
			log.Fatal(err)
		}
		for { // until it is done, and its ID free
			if _, err := inspector.GetTaskInfo("default", "order-7"); err != nil {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		fmt.Println("done")
	}
	// Output:
	// paying 30 EUR under the lock of account/42
	// done
	// done
}

// The code of the package comment that stands in no Example.
func _(ctx context.Context, engine *idempotency.Engine, taskID string) error {
	err := engine.Forget(ctx, once.ScopeOf(""), "charge/"+taskID)
	return err
}
