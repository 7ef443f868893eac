//go:build integration

package redisstore_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/redisstore"
)

// step is one request of a store.
type step struct {
	part  string // of the store: locks, places, records or lockers
	name  string
	grows bool // a server refuses it when its memory is full
	once  bool // it is not sent again by itself
	do    func() error
	first func() error // runs before it; may be nil
}

// life is the history of a lock, of some places, of some records and of a locker's entry:
// each request of a store, one after the other. The keys of all end with a name. The
// requests go through the store, the test's own commands through rdb.
func (w *world) life(s *redisstore.Store, rdb redis.Cmdable, name string) []step {
	ctx := w.t.Context()
	lock, places := "lock-"+name, "places-"+name
	acquire := func(key, owner string, kind driver.Kind, granted bool) func() error {
		return func() error {
			ask := w.held(key, owner)
			if ask.Kind = kind; kind == driver.Permit {
				ask.AtMost = 2
			}
			if !granted {
				ask.Waiter, ask.Left = driver.Waiter(strings.Repeat("w", 32)), 100*time.Millisecond
			}
			rep, err := s.Acquire(ctx, ask)
			if err == nil && rep.Granted != granted {
				err = fmt.Errorf("granted: %v, with the token %d", rep.Granted, rep.Token)
			}
			return err
		}
	}
	move := func(key, from, to string, kind driver.Kind) func() error {
		return func() error {
			ask := w.held(key, to)
			if ask.Kind, ask.From, ask.Noted = kind, from, time.Hour; kind == driver.Permit {
				ask.AtMost = 2
			}
			rep, err := s.Acquire(ctx, ask)
			if err == nil && !rep.Granted {
				err = errors.New("the lock was not moved")
			}
			return err
		}
	}
	renew := func(key, owner string, kind driver.Kind) func() error {
		return func() (err error) {
			batch := []driver.Renewal{{Key: key, Owner: owner, Kind: kind, TTL: w.Holds()}}
			s.Renew(ctx, batch, func(_ int, _ bool, e error) { err = e })
			return err
		}
	}
	release := func(key, owner string, kind driver.Kind) func() error {
		return func() error {
			_, err := s.Release(ctx, driver.ReleaseRequest{
				Key: key, Owner: owner, Kind: kind, TTL: w.Holds(), Token: 1, Remember: true, Deadline: w.deadline(),
			})
			return err
		}
	}
	asking := func(ask func() record.ClaimRequest, state record.State, generation int64) func() error {
		return func() error {
			rep, err := s.Claim(ctx, ask())
			if err == nil && (rep.State != state || rep.Generation != generation) {
				err = fmt.Errorf("state %d, generation %d", rep.State, rep.Generation)
			}
			return err
		}
	}
	claim := func(id, token string, state record.State, generation int64) func() error {
		return asking(func() record.ClaimRequest { return w.claim(id, token) }, state, generation)
	}
	take := func(id, token, ticket string, state record.State, generation int64) func() error {
		return asking(func() record.ClaimRequest {
			ask := w.claim(id, token)
			ask.Ticket, ask.Look = ticket, ticket == ""
			return ask
		}, state, generation)
	}
	commit := func(id, token string, generation int64) func() error {
		return func() error {
			rep, err := s.Commit(ctx, record.CommitRequest{
				ID: id, Token: token, Fingerprint: sha256.Sum256(nil), Generation: generation, Interim: generation == 0,
				Response: []byte("response"), Retention: time.Hour, Tombstone: time.Hour, Deadline: w.deadline(),
			})
			if err == nil && rep.State != record.StateGranted {
				err = fmt.Errorf("state %d", rep.State)
			}
			return err
		}
	}
	abandon := func(id, token string) func() error {
		return func() error {
			return s.Abandon(ctx, record.AbandonRequest{ID: id, Token: token, Deadline: w.deadline()})
		}
	}
	note := func(id, token string, handOver bool) func() error {
		return func() error {
			return s.Mark(ctx, record.MarkRequest{
				ID: id, Token: token, Lease: w.Holds(), Retention: time.Hour, HandOver: handOver, Deadline: w.deadline(),
			})
		}
	}
	mark := func(id, token string) func() error { return note(id, token, false) }
	stepped := func(id, token, log, open string) func() error {
		return func() error {
			return s.Step(ctx, record.StepRequest{
				ID: id, Token: token, Lease: w.Holds(), Retention: time.Hour, Log: []byte(log), Last: log, Open: open, Deadline: w.deadline(),
			})
		}
	}
	lapse := func(id string) func() error {
		return func() error { return rdb.HSet(ctx, w.record(id), "u", 1, "e", 1).Err() }
	}
	orders := "orders-" + name
	paid, failed, lost, given := "paid-"+name, "failed-"+name, "lost-"+name, "given-"+name
	return []step{
		{part: "locks", name: "acquire", grows: true, do: acquire(lock, "a:1", driver.Exclusive, true)},
		{part: "locks", name: "acquire what is held", do: acquire(lock, "b:1", driver.Exclusive, false)},
		{part: "locks", name: "renew", once: true, do: renew(lock, "a:1", driver.Exclusive)},
		{part: "locks", name: "hand a lock over", do: move(lock, "a:1", "ticket:1", driver.Exclusive)},
		{part: "locks", name: "release", do: release(lock, "ticket:1", driver.Exclusive)},

		{part: "places", name: "take a permit", grows: true, do: acquire(places, "a:1", driver.Permit, true)},
		{part: "places", name: "share a lock", grows: true, do: acquire("shared"+places, "a:1", driver.Shared, true)},
		{part: "places", name: "take the last permit", grows: true, do: acquire(places, "b:1", driver.Permit, true)},
		{part: "places", name: "take one permit more", do: acquire(places, "c:1", driver.Permit, false)},
		{part: "places", name: "renew a permit", once: true, do: renew(places, "a:1", driver.Permit)},
		{part: "places", name: "renew a shared lock", once: true, do: renew("shared"+places, "a:1", driver.Shared)},
		{part: "places", name: "hand a permit over", do: move(places, "a:1", "ticket:1", driver.Permit)},
		{part: "places", name: "release a permit", do: release(places, "ticket:1", driver.Permit)},
		{part: "places", name: "release the last permit", do: release(places, "b:1", driver.Permit)},
		{part: "places", name: "release a shared lock", do: release("shared"+places, "a:1", driver.Shared)},

		{part: "records", name: "claim", grows: true, do: claim(paid, "a", record.StateGranted, 1)},
		{part: "records", name: "claim what is in flight", do: claim(paid, "b", record.StateInFlight, 0)},
		{part: "records", name: "extend", grows: true, once: true, do: func() (err error) {
			batch := []record.Extension{{ID: paid, Token: "a", Lease: 2 * w.Holds(), Retention: time.Hour}}
			s.Extend(ctx, batch, func(_ int, e error) { err = e })
			return err
		}},
		{part: "records", name: "mark", grows: true, do: mark(paid, "a")},
		{part: "records", name: "commit", grows: true, do: commit(paid, "a", 1)},
		{part: "records", name: "claim what is completed", do: claim(paid, "c", record.StateCompleted, 0)},
		{part: "records", name: "claim again", grows: true, do: claim(failed, "a", record.StateGranted, 1)},
		{part: "records", name: "take over", grows: true, do: claim(failed, "b", record.StateGranted, 2), first: lapse(failed)},
		{part: "records", name: "abandon a take-over", do: abandon(failed, "b")},
		{part: "records", name: "take over again", grows: true, do: claim(failed, "c", record.StateGranted, 2)},
		{part: "records", name: "claim for the third time", grows: true, do: claim(lost, "a", record.StateGranted, 1)},
		{part: "records", name: "abandon", do: abandon(lost, "a")},
		{part: "records", name: "claim for the fourth time", grows: true, do: claim(lost, "b", record.StateGranted, 1)},
		{part: "records", name: "mark before the loss", grows: true, do: mark(lost, "b")},
		{part: "records", name: "claim what is unknown", do: claim(lost, "c", record.StateUnknown, 0), first: lapse(lost)},
		{part: "records", name: "resolve", grows: true, do: func() error {
			return s.Resolve(ctx, record.ResolveRequest{
				ID: lost, Token: "d", Response: []byte("response"), Retention: time.Hour, Tombstone: time.Hour, Deadline: w.deadline(),
			})
		}},
		{part: "records", name: "claim for the fifth time", grows: true, do: claim(given, "a", record.StateGranted, 1)},
		{part: "records", name: "hand over", grows: true, do: note(given, "a", true)},
		{part: "records", name: "store an interim answer", grows: true, do: commit(given, "a", 0)},
		{part: "records", name: "claim a request that is handed over", do: claim(given, "b", record.StateInFlight, 0)},
		{part: "records", name: "take with a ticket", grows: true, do: take(given, "b", "a", record.StateGranted, 1)},
		{part: "records", name: "take a ticket twice", do: take(given, "c", "a", record.StateInFlight, 0)},
		{part: "records", name: "look", do: take(given, "", "", record.StateInFlight, 0)},
		{part: "records", name: "give back to the ticket", do: abandon(given, "b")},
		{part: "records", name: "take again", grows: true, do: take(given, "d", "a", record.StateGranted, 1)},
		{part: "records", name: "take over from a job", grows: true, do: claim(given, "e", record.StateGranted, 2), first: lapse(given)},
		{part: "records", name: "hand over again", grows: true, do: note(given, "e", true)},
		{part: "records", name: "take the ticket back", do: abandon(given, "e")},
		{part: "records", name: "forget", once: true, do: func() error { return s.Forget(ctx, lost) }},

		{part: "steps", name: "claim a request with steps", grows: true, do: claim(orders, "a", record.StateGranted, 1)},
		{part: "steps", name: "open a step", grows: true, do: stepped(orders, "a", "charge", "book")},
		{part: "steps", name: "end a step", grows: true, do: stepped(orders, "a", "charge book", "")},
		{part: "steps", name: "give up a claim with steps", do: abandon(orders, "a")},
		{part: "steps", name: "claim the rest of the steps", grows: true, do: claim(orders, "b", record.StateGranted, 1)},
		{part: "steps", name: "open the last step", grows: true, do: stepped(orders, "b", "charge book mail", "send")},
		{part: "steps", name: "resolve a step", grows: true, first: lapse(orders), do: func() error {
			return s.Resolve(ctx, record.ResolveRequest{
				ID: orders, Token: "r", Step: "send", Log: []byte(" send"), Retention: time.Hour, Tombstone: time.Hour, Deadline: w.deadline(),
			})
		}},
		{part: "steps", name: "claim after the resolution", grows: true, do: claim(orders, "c", record.StateGranted, 2)},
		{part: "steps", name: "answer in place of the steps", grows: true, do: commit(orders, "c", 2)},

		{part: "lockers", name: "announce", grows: true, once: true, do: func() error {
			return s.Announce(ctx, driver.Announcement{ID: strings.Repeat("a", 32), Host: "h", PID: 1, Started: time.Now(), TTL: time.Hour})
		}},
		{part: "lockers", name: "withdraw", once: true, do: func() error { return s.Withdraw(ctx, strings.Repeat("a", 32)) }},
	}
}

// claim is a claim that does not lapse during the test.
func (w *world) claim(id, token string) record.ClaimRequest {
	return record.ClaimRequest{
		ID: id, Token: token, Fingerprint: sha256.Sum256(nil), Lease: w.Holds(), Retention: time.Hour,
		Tombstone: true, Waits: true, Deadline: w.deadline(), Late: func(record.ClaimReply, error) {},
	}
}

// live takes each step. The function may do something around it; nil takes it only.
func (w *world) live(steps []step, around func(st step) error) {
	w.t.Helper()
	for _, st := range steps {
		var err error
		if st.first != nil {
			err = st.first()
		}
		if around == nil {
			err = errors.Join(err, st.do())
		} else {
			err = errors.Join(err, around(st))
		}
		if err != nil {
			w.t.Fatalf("%s: %s: %v", st.part, st.name, err)
		}
	}
}

// listen subscribes to the release of a lock and to the end of a claim, and waits until
// both have been heard.
func (w *world) listen(s *redisstore.Store, id string) {
	w.t.Helper()
	for what, begin := range map[string]func(wake func()) (stop func()){
		"the release of a lock": func(wake func()) func() { return s.Calls("w1", func(driver.Call) { wake() }) },
		"the end of a claim":    func(wake func()) func() { return s.Await(id, time.Now(), wake) },
	} {
		heard := make(chan error, 100)
		stop := begin(func() { heard <- nil })
		w.want(what, heard) // the subscription: what came before is not known
		stop()
	}
}
