package drivertest

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

func (s *suite) renewExtends() {
	key := s.prompt("extended", func(key string) error {
		owner, _ := s.take(key, short)
		_, err := s.renew(driver.Renewal{Key: key, Owner: owner, TTL: lease})
		return err
	})
	// A store on several servers may answer once most of them have renewed: until the
	// others have, they tell the end from before.
	s.until("the time that remains is that of the renewal", func() bool {
		rep := s.refuse(driver.AcquireRequest{Key: key, Owner: s.owner()})
		return rep.TTL < 0 || rep.TTL > short
	})
}

func (s *suite) renewNeverShortens() {
	key := s.key("shortened")
	owner, _ := s.take(key, lease)
	if _, err := s.renew(driver.Renewal{Key: key, Owner: owner, TTL: 50 * time.Millisecond}); err != nil {
		s.Fatalf("Renew: %v", err)
	}
	time.Sleep(150 * time.Millisecond) // past the end that a shortened lease would have
	s.refuse(driver.AcquireRequest{Key: key, Owner: s.owner()})
}

func (s *suite) renewChecks() {
	var owner string
	key := s.prompt("checked", func(key string) error {
		owner, _ = s.take(key, short)
		_, err := s.renew(driver.Renewal{Key: key, Owner: owner})
		return err
	})
	other := s.owner()
	s.until("a check does not extend the lease", func() bool {
		return s.try(driver.AcquireRequest{Key: key, Owner: other}).Granted
	})
	if _, err := s.renew(driver.Renewal{Key: key, Owner: owner}); !errors.Is(err, driver.ErrNotOwner) {
		s.Errorf("a check of an owner whose lease is over: %v; want ErrNotOwner", err)
	}
}

func (s *suite) renewReportsOnce() {
	const n = 100
	batch := make([]driver.Renewal, n)
	for i := range batch {
		key := s.key("batch/" + string(rune('A'+i)))
		owner := s.owner()
		if i%3 != 0 { // the others are held by no owner
			owner, _ = s.take(key, lease)
		}
		batch[i] = driver.Renewal{Key: key, Owner: owner, TTL: lease}
	}
	for _, asked := range []bool{false, true} {
		for i := range batch {
			batch[i].Asked = asked
		}
		var mu sync.Mutex
		calls, errs := make([]int, n), make([]error, n)
		ctx, cancel := context.WithTimeout(s.Context(), patience)
		s.store.Renew(ctx, batch, func(i int, _ bool, err error) {
			mu.Lock()
			defer mu.Unlock()
			calls[i]++
			errs[i] = err
		})
		cancel()
		for i := range batch {
			if calls[i] != 1 {
				s.Errorf("lease %d of %d was reported %d times", i, n, calls[i])
			}
			if held := i%3 != 0; held != (errs[i] == nil) || !held && !errors.Is(errs[i], driver.ErrNotOwner) {
				s.Errorf("lease %d, held %v: %v", i, held, errs[i])
			}
		}
	}
	s.store.Renew(s.Context(), nil, func(int, bool, error) { s.Error("an empty batch has an outcome") })
}

func (s *suite) renewNotOwner() {
	key := s.key("lost")
	if _, err := s.renew(driver.Renewal{Key: key, Owner: s.owner(), TTL: lease}); !errors.Is(err, driver.ErrNotOwner) {
		s.Errorf("Renew of a free lock: %v; want ErrNotOwner", err)
	}
	s.take(key, lease)
	_, err := s.renew(driver.Renewal{Key: key, Owner: s.owner(), TTL: lease})
	if !errors.Is(err, driver.ErrNotOwner) || errors.Is(err, driver.ErrDeleted) {
		s.Errorf("Renew of a lock that another holds: %v; want ErrNotOwner, and not ErrDeleted", err)
	}
}

func (s *suite) renewContended() {
	key := s.key("contended")
	owner, _ := s.take(key, lease)
	if contended, err := s.renew(driver.Renewal{Key: key, Owner: owner, TTL: lease}); contended || err != nil {
		s.Errorf("without waiters: contended %v, %v", contended, err)
	}
	s.refuse(driver.AcquireRequest{Key: key, Owner: s.owner(), Waiter: "w1"})
	if contended, err := s.renew(driver.Renewal{Key: key, Owner: owner, TTL: lease}); !contended || err != nil {
		s.Errorf("with a waiter: contended %v, %v", contended, err)
	}
}
