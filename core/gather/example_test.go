package gather_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/gather"
	"github.com/interlock-go/interlock/core/memstore"
)

// Debit is an item.
type Debit struct{ Amount int }

// Ten callers debit one account. Callers that wait at the same time share a section.
func Example() {
	locker, err := core.New(memstore.New())
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = locker.Close(context.Background()) }()

	balance := 100
	debitAll := func(_ context.Context, _ string, batch []Debit) ([]int, error) {
		balances := make([]int, len(batch))
		for i, debit := range batch {
			balance -= debit.Amount
			balances[i] = balance
		}
		return balances, nil
	}
	debits := gather.New(locker, func(ctx context.Context, key string, batch []Debit) ([]int, error) {
		return debitAll(ctx, key, batch) // one transaction
	}, core.MaxHold(10*time.Second))

	ctx := context.Background()
	var callers sync.WaitGroup
	for range 10 {
		callers.Go(func() {
			balance, err := debits.Do(ctx, "account/42", Debit{Amount: 5})
			if err != nil || balance >= 100 {
				log.Print(balance, err)
			}
		})
	}
	callers.Wait()
	fmt.Println("balance:", balance)
	// Output: balance: 50
}

// Each item decides for itself. An error does not fail the other items.
func ExampleEach() {
	locker, err := core.New(memstore.New())
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = locker.Close(context.Background()) }()

	errShort := errors.New("not enough money")
	balance := 10
	debits := gather.New(locker, gather.Each(func(_ context.Context, _ string, amount int) (int, error) {
		if amount > balance {
			return 0, errShort
		}
		balance -= amount
		return balance, nil
	}))
	for _, amount := range []int{7, 5, 2} {
		fmt.Println(debits.Do(context.Background(), "account/42", amount))
	}
	// Output:
	// 3 <nil>
	// 0 not enough money
	// 1 <nil>
}
