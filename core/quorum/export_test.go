//go:build integration

package quorum

// Busy reports whether a node may yet do something that it was asked for.
func (s *Store) Busy() bool { return s.busy() }
