package fleet

import (
	"context"
	"iter"
	"slices"
	"time"
)

// followEvery is the pause between two looks of Follow.
const followEvery = time.Second

// Follow yields the present state of a lock, and its state again after each change of its
// holders, until ctx ends or the loop does. A process that waits to lead names the leader by it
// (core.Lead):
//
//	for lock, err := range all.Follow(ctx, "leader/mailer") {
//		if err == nil && lock.Held == 1 {
//			log.Print("the leader is ", lock.Holders[0].Locker.Host)
//		}
//	}
//
// It looks once a second, and more seldom where a look takes long, so a holder between two looks
// can be missed, and a new one is seen up to a second late. If a look fails, Follow yields the
// error, once until a look succeeds, and goes on. A renewal and a new waiter are no changes.
func (f *Fleet) Follow(ctx context.Context, key string) iter.Seq2[Lock, error] {
	return func(yield func(Lock, error) bool) {
		timer := time.NewTimer(0)
		defer timer.Stop()
		var seen []grant
		first, failing := true, false
		for {
			select {
			case <-timer.C:
			case <-ctx.Done():
				return
			}
			began := time.Now()
			lock, err := f.Inspect(ctx, key)
			switch {
			case ctx.Err() != nil:
				return
			case err != nil:
				if !failing && !yield(Lock{}, err) {
					return
				}
			default:
				now := grants(lock)
				if (first || !slices.Equal(now, seen)) && !yield(lock, nil) {
					return
				}
				seen, first = now, false
			}
			failing = err != nil
			timer.Reset(max(followEvery, 5*time.Since(began)))
		}
	}
}

// grant identifies a holder.
type grant struct {
	owner string
	token int64
}

func grants(l Lock) []grant {
	all := make([]grant, len(l.Holders))
	for i := range l.Holders {
		all[i] = grant{l.Holders[i].Owner, l.Holders[i].Token}
	}
	return all
}
