package pgxstore_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-go/interlock/pgxstore"
)

// The listener has its own pool, to the server itself: the service's pool may go through a
// pooler that delivers no notifications.
func ExampleNewListener() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	pool, err := pgxpool.New(ctx, os.Getenv("DIRECT_DATABASE_URL"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer pool.Close()
	listener, err := pgxstore.NewListener(pool, pgxstore.CheckEvery(10*time.Second))
	if err != nil {
		fmt.Println(err)
		return
	}
	err = listener.Listen(ctx, "orders",
		func(payload string) { fmt.Println("order", payload) },
		func(listening bool) { fmt.Println("listening:", listening) })
	fmt.Println(errors.Is(err, context.DeadlineExceeded))
}

// The store is on the service's pool, and a handler gets the transaction of its request.
func ExampleNew() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer pool.Close()
	store, err := pgxstore.New(pool)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = store.Close() }()
	_ = func(ctx context.Context) error {
		tx, err := pgxstore.Tx(ctx) // in a handler
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, "UPDATE account SET balance = balance - 25 WHERE id = 'alice'")
		return err
	}
}
