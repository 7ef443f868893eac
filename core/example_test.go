package core_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/memstore"
)

// exampleLocker is a locker on a store in memory, where yours is on your Redis or your
// PostgreSQL.
func exampleLocker() (*core.Locker, func()) {
	locker, err := core.New(memstore.New())
	if err != nil {
		log.Fatal(err)
	}
	return locker, func() { _ = locker.Close(context.Background()) }
}

func ExampleLocker_Lock() {
	locker, done := exampleLocker()
	defer done()
	debit := func(ctx context.Context, token int64) error {
		fmt.Println("debiting under the lock, fenced:", token > 0)
		return ctx.Err()
	}

	work := func(ctx context.Context) error {
		lease, err := locker.Lock(ctx, "account/42", core.Wait(time.Second))
		if err != nil {
			return err
		}
		defer lease.Release(ctx)
		return debit(lease.Context(), lease.Token())
	}
	fmt.Println(work(context.Background()))
	// Output:
	// debiting under the lock, fenced: true
	// <nil>
}

func ExampleLocker_TryLock() {
	locker, done := exampleLocker()
	defer done()
	ctx := context.Background()

	lease, err := locker.TryLock(ctx, "report")
	if err != nil {
		log.Fatal(err)
	}
	_, err = locker.TryLock(ctx, "report")
	fmt.Println("another process is at it:", errors.Is(err, core.ErrHeld))
	_ = lease.Release(ctx)
	// Output: another process is at it: true
}

// At most two calls of a partner at the same time, over all processes.
func ExampleLocker_Permit() {
	locker, done := exampleLocker()
	defer done()
	ctx := context.Background()

	for range 2 {
		permit, err := locker.Permit(ctx, "partner", 2, core.Wait(time.Second))
		if err != nil {
			log.Fatal(err)
		}
		defer permit.Release(ctx)
	}
	_, err := locker.TryPermit(ctx, "partner", 2)
	fmt.Println("all permits are taken:", errors.Is(err, core.ErrFull))
	// Output: all permits are taken: true
}

// Any number of readers, and no writer at the same time.
func ExampleLocker_LockShared() {
	locker, done := exampleLocker()
	defer done()
	ctx := context.Background()

	for range 2 {
		reader, err := locker.LockShared(ctx, "account/42", core.Wait(time.Second))
		if err != nil {
			log.Fatal(err)
		}
		defer reader.Release(ctx)
	}
	_, err := locker.TryLock(ctx, "account/42")
	fmt.Println("the account is being read:", errors.Is(err, core.ErrHeld))
	// Output: the account is being read: true
}

func ExampleLocker_LockAll() {
	locker, done := exampleLocker()
	defer done()
	ctx := context.Background()

	// Both accounts of a transfer, in the same order for all.
	lease, err := locker.LockAll(ctx, []string{"account/b", "account/a"})
	if err != nil {
		log.Fatal(err)
	}
	defer lease.Release(ctx)
	fmt.Println(lease.Keys())
	// Output: [account/a account/b]
}

func ExampleLocker_Do() {
	locker, done := exampleLocker()
	defer done()

	err := locker.Do(context.Background(), "account/42", func(ctx context.Context) error {
		// The same key again: a further hold of the same lock, not a deadlock.
		return locker.Do(ctx, "account/42", func(context.Context) error {
			fmt.Println("inside, twice")
			return nil
		})
	})
	fmt.Println(err)
	// Output:
	// inside, twice
	// <nil>
}

// Of all processes that do this, one delivers the mail.
func ExampleLead() {
	locker, done := exampleLocker()
	defer done()
	ctx, shutdown := context.WithCancel(context.Background())
	defer shutdown()

	deliver := func(ctx context.Context, token int64) error {
		fmt.Println("delivering, fenced:", token > 0)
		shutdown() // as SIGTERM does
		<-ctx.Done()
		return nil
	}
	err := core.Lead(ctx, locker, "leader/mailer", func(ctx context.Context) error {
		token := core.LeaseFromContext(ctx).Token() // fences the leader's writes
		return deliver(ctx, token)                  // until ctx ends
	})
	fmt.Println(err)
	// Output:
	// delivering, fenced: true
	// <nil>
}

func ExampleLeaseFromContext() {
	locker, done := exampleLocker()
	defer done()

	save := func(ctx context.Context) {
		lease := core.LeaseFromContext(ctx)
		token, ok := lease.TokenFor("account/42")
		fmt.Println("the write carries a token:", ok && token > 0)
	}
	_ = locker.Do(context.Background(), "account/42", func(ctx context.Context) error {
		save(ctx)
		return nil
	})
	// Output: the write carries a token: true
}

func ExampleLease_Wanted() {
	ctx, store := context.Background(), memstore.New()
	here, err := core.New(store)
	if err != nil {
		log.Fatal(err)
	}
	defer here.Close(ctx)
	there, err := core.New(store) // another process
	if err != nil {
		log.Fatal(err)
	}
	defer there.Close(ctx)

	lease, err := here.Lock(ctx, "index", core.Attentive())
	if err != nil {
		log.Fatal(err)
	}
	var other sync.WaitGroup
	copyPart := func(part int) {
		fmt.Println("part", part, "is copied")
		if part == 2 { // the other process comes
			other.Go(func() {
				lease, err := there.Lock(ctx, "index")
				if err != nil {
					log.Fatal(err)
				}
				fmt.Println("the other process has the lock")
				_ = lease.Release(ctx)
			})
			<-lease.Wanted()
		}
	}
	for part := 1; part <= 1000; part++ {
		copyPart(part)
		select {
		case <-lease.Wanted():
			fmt.Println("stopped after part", part)
			_ = lease.Release(ctx)
			other.Wait()
			return
		default:
		}
	}
	// Output:
	// part 1 is copied
	// part 2 is copied
	// stopped after part 2
	// the other process has the lock
}

// A handler answers 202, and a worker of another process goes on with the lock. The queue delivers the
// message twice.
func ExampleLease_HandOver() {
	store := memstore.New() // redisstore.New in production
	web, worker := must(core.New(store)), must(core.New(store))
	ctx := context.Background()
	defer web.Close(ctx)
	defer worker.Close(ctx)

	lease, err := web.Lock(ctx, "account/42")
	if err != nil {
		panic(err)
	}
	ticket, err := lease.HandOver(ctx, time.Minute)
	if err != nil {
		panic(err) // nothing is handed over, and the lock is free soon
	}
	message := ticket.Text()
	_ = lease.Release(ctx) // does nothing but end the context

	for range 2 {
		ticket, err := core.ParseTicket(message)
		if err != nil {
			panic(err)
		}
		next, err := worker.TakeOver(ctx, ticket)
		if errors.Is(err, core.ErrTicketTaken) {
			fmt.Println("taken over before: core.OrLock would wait in turn")
			continue
		}
		fmt.Println("goes on:", err == nil && next.Token() > lease.Token())
		defer next.Release(ctx)
	}
	// Output:
	// goes on: true
	// taken over before: core.OrLock would wait in turn
}

func must(l *core.Locker, err error) *core.Locker {
	if err != nil {
		panic(err)
	}
	return l
}
