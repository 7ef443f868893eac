package memstore

// Records is how many keys the store knows.
func Records(s *Store) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.records)
}
