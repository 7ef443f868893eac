// Package gocronlock runs each job of gocron (github.com/go-co-op/gocron/v2) in a single process,
// where several have it: [NewLocker] makes its Locker, [NewElector] its Elector.
//
//	locks, err := gocronlock.NewLocker(locker, 30*time.Second)
//	if err != nil {
//		return err
//	}
//	scheduler, err := gocron.NewScheduler(gocron.WithDistributedLocker(locks))
//
// # Which of the two
//
// With the Locker each tick of each job runs in the process that comes first. When a process dies,
// the others go on with the next tick. With the Elector one process runs all jobs; after its death
// no job runs until its lease has ended ([core.Watchdog]).
//
// Neither carries a job out exactly once: a process can die in the middle, and the leader can
// change at a tick. A job that must not run twice calls once.Per of package core/idempotency,
// which keeps a record of each period. gocron has no place for the context of a lock: a job that
// is to end when its lock is lost calls [core.Locker.Do].
package gocronlock
