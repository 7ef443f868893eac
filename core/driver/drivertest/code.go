package drivertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

// code lists the parts of the contract that a scenario cannot express.
var code = []part{
	{name: "code: acquire grants one of many", test: func(s *stage) { s.crowd(32, 1, driver.AcquireRequest{}) }},
	{name: "code: acquire with an ended context", test: (*stage).endedContext},
	{name: "code: renew reports each lease once", test: (*stage).renewReportsOnce},
	{name: "code: permits of one locker at once are limited, each on its own", needs: []string{"places"}, test: func(s *stage) {
		s.crowd(40, 25, driver.AcquireRequest{Kind: driver.Permit, AtMost: 25, Waiter: "w1"})
	}},
	{name: "code: an operator sees holders and waiters", needs: []string{"Lister"}, test: (*stage).listed},
	{name: "code: an operator sees places", needs: []string{"Lister", "places"}, test: (*stage).listedPlaces},
	{name: "code: no order of late requests changes an offer", needs: []string{"offers"}, test: (*stage).offeredInAnyOrder},
}

// done fails the test on an error.
func (s *stage) done(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// crowd makes n requests at the same time, each with another owner. The store must grant so many of them.
func (s *stage) crowd(n, granted int, req driver.AcquireRequest) {
	req.Key, req.TTL, req.Deadline, req.Late = s.key("k"), lease, soon(), func(driver.Reply, error) {}
	reps, start := make([]driver.Reply, n), make(chan struct{})
	owner := func(i int) string { return s.owner(fmt.Sprint("o:", i)) }
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			<-start
			req, err := req, error(nil)
			req.Owner = owner(i)
			if reps[i], err = s.store.Acquire(s.Context(), req); err != nil {
				s.Errorf("Acquire beside others: %v", err)
			}
		})
	}
	close(start)
	all.Wait()
	var tokens []int64
	for i, rep := range reps {
		if rep.Granted {
			tokens = append(tokens, rep.Token)
			_, err := s.store.Release(s.Context(), driver.ReleaseRequest{
				Key: req.Key, Owner: owner(i), Kind: req.Kind, AtMost: req.AtMost, TTL: lease, Deadline: soon(),
			})
			s.done(err)
		} else if rep.Full != req.Kind.Place() {
			s.Errorf("the answer beside others is %s", shown(rep))
		}
	}
	if len(tokens) != granted {
		s.Errorf("%d of %d requests are granted; expected are %d", len(tokens), n, granted)
	}
	slices.Sort(tokens)
	for i := 1; i < len(tokens); i++ {
		if tokens[i]-tokens[i-1] < driver.Tokens {
			s.Errorf("two grants have tokens in common: %d and %d", tokens[i-1], tokens[i])
		}
	}
	s.done(s.must(true, req.Key, s.owner("a"), ""))
}

func (s *stage) endedContext() {
	key, owner := s.key("k"), s.owner("a")
	ctx, cancel := context.WithCancel(s.Context())
	cancel()
	outcomes := make(chan any, 2)
	rep, err := s.store.Acquire(ctx, driver.AcquireRequest{
		Key: key, Owner: owner, TTL: lease, Late: func(rep driver.Reply, _ error) { outcomes <- rep },
	})
	if errors.Is(err, driver.ErrPending) {
		_, err := next(outcomes, soon())
		s.done(err)
	} else if err == nil && !rep.Granted {
		s.Error("a free lock is refused")
	}
	if _, err := next(outcomes, time.Now().Add(20*time.Millisecond)); err == nil {
		s.Error("Late was called although Acquire had returned the outcome, or was called twice")
	}
	s.done(s.until(func() error { // a release settles the request
		_, _ = s.store.Release(s.Context(), driver.ReleaseRequest{Key: key, Owner: owner, TTL: lease, Deadline: soon()})
		return s.must(true, key, s.owner("b"), "")
	}))
}

func (s *stage) renewReportsOnce() {
	const n = 100
	batch := make([]driver.Renewal, n)
	for i := range batch {
		batch[i] = driver.Renewal{Key: s.key(fmt.Sprint("batch/", i)), Owner: s.owner(fmt.Sprint("a:", i)), TTL: lease}
		if i%3 != 0 { // the others have no owner
			s.done(s.must(true, batch[i].Key, batch[i].Owner, ""))
		}
	}
	for _, asked := range []bool{false, true} {
		for i := range batch {
			batch[i].Asked = asked
		}
		var mu sync.Mutex
		reports := make([][]error, n)
		ctx, cancel := context.WithTimeout(s.Context(), patience)
		s.store.Renew(ctx, batch, func(i int, _ bool, err error) {
			mu.Lock()
			defer mu.Unlock()
			reports[i] = append(reports[i], err)
		})
		cancel()
		for i, errs := range reports {
			if held := i%3 != 0; len(errs) != 1 || held && errs[0] != nil || !held && !errors.Is(errs[0], driver.ErrNotOwner) {
				s.Errorf("lease %d of %d, held %v, is reported as %v; expected is one outcome", i, n, held, errs)
			}
		}
	}
	s.store.Renew(s.Context(), nil, func(int, bool, error) { s.Error("an empty batch has an outcome") })
}

// offeredInAnyOrder plays the requests of an offer's owner, and late requests of its locker, in every
// order. Until the release no other owner gets the lock. After it these requests change nothing.
func (s *stage) offeredInAnyOrder() {
	orders := map[string]bool{"": true}
	for letter := range strings.SplitSeq("rrllad", "") {
		longer := map[string]bool{}
		for order := range orders {
			for i := range len(order) + 1 {
				longer[order[:i]+letter+order[i:]] = true
			}
		}
		orders = longer
	}
	for order := range orders {
		all, err := parse("order "+order, offeredIn(order))
		s.done(err)
		all[0].run(s.T, s.store)
	}
}

// offeredIn returns the scenario of one order: r renews, l releases, a acquires and d declines.
func offeredIn(order string) string {
	const refused = "\n  x:3 acquires k wait~A -> listed holder=x:offer\n"
	before, after, _ := strings.Cut(order, "l")
	return `scenario any order
x takes offers
within 3s:
  a acquires k -> granted
  x acquires k wait~A -> listed token=a
  a releases k
  x gets k -> token>a
` + strings.NewReplacer(
		"r", "  x:offer renews k -> kept contended"+refused,
		"a", "  x:2 acquires k wait~A -> listed holder=x:offer"+refused,
		"d", "  x declines k wait~A"+refused,
	).Replace(before) + "  x:offer releases k\n" + strings.NewReplacer(
		"r", "  x:offer renews k -> lost\n",
		"l", "  x:offer releases k -> lost\n",
		"a", "  x:2 acquires k wait~A -> any\n",
		"d", "  x declines k wait~A\n",
	).Replace(after)
}
