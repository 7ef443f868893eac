package memstore

import (
	"slices"

	"github.com/interlock-go/interlock/core/driver"
)

// Notify implements [driver.Notifier].
func (s *Store) Notify(id string, hear func(key, owner string)) (stop func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.attentive[id] = hear
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.attentive, id)
	}
}

// news reports whether the holders have to be told that a locker waits, if that is refused: it
// begins the list, or asks again.
func (r *lock) news(waiter string) bool {
	id := waiterOf(waiter).id
	return id != "" && (len(r.waiting) == 0 || slices.ContainsFunc(r.waiting, func(w waiting) bool { return w.id == id }))
}

// wanted returns what tells the attentive holders of a lock that another locker waits. The
// caller holds s.mu, and calls it when it has given s.mu back.
func (s *Store) wanted(key string, r *lock) (tell []func()) {
	owners := []string{r.owner}
	for _, p := range r.places {
		owners = append(owners, p.owner)
	}
	for _, owner := range owners {
		id, _ := driver.IsAttentive(owner)
		if hear := s.attentive[id]; hear != nil {
			tell = append(tell, func() { hear(key, owner) })
		}
	}
	return tell
}
