package fleet

import (
	"cmp"
	"context"
	"crypto/rand"
	"slices"
	"strings"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

// checkOf returns Fleet.Check on a store.
func checkOf(store driver.Store) func(ctx context.Context, _ string) (Report, error) {
	return func(ctx context.Context, _ string) (Report, error) { return checkStore(ctx, store) }
}

func checkStore(ctx context.Context, store driver.Store) (r Report, err error) {
	if checker, ok := store.(interface {
		Check(ctx context.Context) ([]string, error)
	}); ok {
		found, err := checker.Check(ctx)
		if err != nil {
			return r, err
		}
		for _, text := range found {
			if strings.HasPrefix(text, driver.NotKnown) {
				r.Notes = append(r.Notes, text)
			} else {
				r.Unsafe = append(r.Unsafe, text)
			}
		}
	}
	var took []time.Duration
	ask := driver.AcquireRequest{
		Key: "interlock doctor/" + rand.Text(), Owner: strings.ToLower(rand.Text()) + ":1", TTL: 10 * time.Second,
		Late: func(driver.Reply, error) {}, Deadline: time.Now().Add(5 * time.Second),
	}
	began := time.Now()
	err = try(ctx, store, ask, func() { // between two requests
		took = append(took, time.Since(began))
		began = time.Now()
	})
	if err != nil && len(r.Unsafe) > 0 { // which may say why
		r.Servers = []Server{{Err: err}}
		return r, nil
	}
	if err != nil {
		return r, err
	}
	slices.Sort(took)
	r.Servers = []Server{{RoundTrip: took[len(took)/2], Slowest: took[len(took)-1]}}
	return r, nil
}

// try takes a lock, renews it and gives it back. It calls each after each of these.
func try(ctx context.Context, store driver.Store, ask driver.AcquireRequest, each func()) error {
	rep, err := store.Acquire(ctx, ask)
	if each(); err != nil || !rep.Granted {
		return err
	}
	renewal := driver.Renewal{Key: ask.Key, Owner: ask.Owner, Kind: ask.Kind, TTL: ask.TTL, Asked: true}
	store.Renew(ctx, []driver.Renewal{renewal}, func(_ int, _ bool, renewed error) { err = renewed })
	each()
	_, released := store.Release(ctx, driver.ReleaseRequest{
		Key: ask.Key, Owner: ask.Owner, Kind: ask.Kind, Token: rep.Token, TTL: ask.TTL, Deadline: ask.Deadline,
	})
	each()
	return cmp.Or(err, released)
}
