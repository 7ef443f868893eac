package memstore

// Locks is how many keys the store knows.
func Locks(s *Store) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.locks)
}

// Kept is how many records and tombstones the store has.
func Kept(s *Store) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.records.entries) + len(s.records.gone)
}
