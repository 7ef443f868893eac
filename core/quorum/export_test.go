//go:build integration

package quorum

// Busy reports whether a node may yet do something that it was asked for.
func (s *Store) Busy() bool {
	for _, n := range s.nodes {
		if n.busy() {
			return true
		}
	}
	return false
}
