package pglock

import "github.com/interlock-go/interlock/core/driver"

// Notify implements [driver.Turns]. A hint for a locker of another process is an announcement. It
// names the owner, and not the key, which may be secret. Without a Listener hints stay in the process.
func (s *Store) Notify(id string, hear func(key, owner string)) (stop func()) {
	w := &s.watches
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hints[id] = hear
	w.begin()
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.hints, id)
	}
}

// want tells the locker of an attentive owner that another locker waits.
func (w *watches) want(key, owner string) {
	if !w.hint(key, owner) && w.store.set.Listen != nil {
		w.store.set.Announce(wantedWord + " " + owner)
	}
}

// hint passes a hint on to the locker of an owner, or to all lockers if there is no owner. It reports
// whether the locker is one of this process.
func (w *watches) hint(key, owner string) (here bool) {
	id, _ := driver.IsAttentive(owner)
	var all []func(key, owner string)
	w.mu.Lock()
	for other, hear := range w.hints {
		if owner == "" || other == id {
			all = append(all, hear)
		}
	}
	w.mu.Unlock()
	for _, hear := range all {
		hear(key, owner)
	}
	return len(all) > 0
}

// record notes whether the row of a watched key has a record, so that the next request for it does
// not have to find that out.
func (w *watches) record(key string, has bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if t := w.topics[key]; t != nil {
		t.recorded = has
	}
}

func (w *watches) recorded(key string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	t := w.topics[key]
	return t != nil && t.recorded
}
