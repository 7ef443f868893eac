package drivertest

import (
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

// listsLockers is for stores that keep entries about lockers. What the entries say is for
// the tests of the store.
func (s *suite) listsLockers() {
	registry, ok := s.store.(driver.Registry)
	if !ok {
		s.Skip("the store is no driver.Registry")
	}
	a := driver.Announcement{
		ID: s.owner(), Host: "host", PID: 1, Service: "service\x00\xff", Version: "v1", Started: time.Now(),
		Protocol: driver.Protocol, TTL: lease,
	}
	for range 2 {
		if err := registry.Announce(s.Context(), a); err != nil {
			s.Errorf("Announce: %v", err)
		}
	}
	s.take(a.ID, short) // an entry is no lock
	for range 2 {
		if err := registry.Withdraw(s.Context(), a.ID); err != nil {
			s.Errorf("Withdraw: %v", err)
		}
	}
}
