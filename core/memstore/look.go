package memstore

import (
	"context"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/interlock-go/interlock/core/driver"
)

// Look returns the state of the lock of a key, for package fleet.
func (s *Store) Look(_ context.Context, key string) (driver.View, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.locks[key]; l != nil {
		return l.View(key, s.now()), nil
	}
	return driver.View{Key: key, Now: s.now()}, nil
}

// List goes through the locks with keys that begin with a text, for package fleet.
func (s *Store) List(ctx context.Context, begin string) iter.Seq2[driver.View, error] {
	return func(yield func(driver.View, error) bool) {
		s.mu.Lock()
		keys := slices.Sorted(maps.Keys(s.locks))
		s.mu.Unlock()
		for _, key := range keys {
			v, err := s.Look(ctx, key)
			if strings.HasPrefix(key, begin) && !v.Free() && !yield(v, err) {
				return
			}
		}
	}
}
