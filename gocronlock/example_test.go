package gocronlock_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/google/uuid"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/gocronlock"
)

// Two processes have the same job at the same time. One of them runs it.
func ExampleNewLocker() {
	store := memstore.New() // in place of redisstore.New or pgstore.New
	for _, process := range []string{"first", "second"} {
		locker, err := core.New(store)
		if err != nil {
			log.Fatal(err)
		}
		defer func() {
			soon, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
			defer cancel()
			_ = locker.Close(soon) // the lock ends with its lease
		}()
		locks, err := gocronlock.NewLocker(locker, 30*time.Second)
		if err != nil {
			log.Fatal(err)
		}
		scheduler, err := gocron.NewScheduler(gocron.WithDistributedLocker(locks))
		if err != nil {
			log.Fatal(err)
		}
		over := make(chan struct{})
		_, err = scheduler.NewJob(gocron.OneTimeJob(gocron.OneTimeJobStartImmediately()),
			gocron.NewTask(func() { fmt.Println("the", process, "process sends the report") }), gocron.WithName("report"),
			gocron.WithEventListeners(
				gocron.AfterJobRuns(func(uuid.UUID, string) { close(over) }),
				gocron.AfterLockError(func(uuid.UUID, string, error) {
					fmt.Println("the", process, "process leaves it out")
					close(over)
				}),
			))
		if err != nil {
			log.Fatal(err)
		}
		scheduler.Start()
		<-over
		if err := scheduler.Shutdown(); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// the first process sends the report
	// the second process leaves it out
}

// One process runs all jobs.
func ExampleNewElector() {
	ctx, resign := context.WithCancel(context.Background())
	locker, err := core.New(memstore.New()) // in place of redisstore.New or pgstore.New
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close(context.Background())
	defer resign()
	elector := gocronlock.NewElector(ctx, locker, "leader/cron")
	scheduler, err := gocron.NewScheduler(gocron.WithDistributedElector(elector))
	if err != nil {
		log.Fatal(err)
	}
	sent := make(chan struct{}, 1)
	_, err = scheduler.NewJob(gocron.DurationJob(10*time.Millisecond), gocron.NewTask(func() {
		select {
		case sent <- struct{}{}:
		default:
		}
	}))
	if err != nil {
		log.Fatal(err)
	}
	scheduler.Start()
	<-sent
	fmt.Println("the leader sends reports")
	if err := scheduler.Shutdown(); err != nil {
		log.Fatal(err)
	}
	// Output: the leader sends reports
}

// The code of the package comment that stands in no Example.
func _(locker *core.Locker) error {
	locks, err := gocronlock.NewLocker(locker, 30*time.Second)
	if err != nil {
		return err
	}
	scheduler, err := gocron.NewScheduler(gocron.WithDistributedLocker(locks))
	if err != nil {
		return err
	}
	return scheduler.Shutdown()
}

func _(ctx context.Context, locker *core.Locker) error {
	scheduler, err := gocron.NewScheduler(gocron.WithDistributedElector(gocronlock.NewElector(ctx, locker, "leader/cron")))
	if err != nil {
		return err
	}
	return scheduler.Shutdown()
}
