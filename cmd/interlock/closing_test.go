//go:build integration

package main

import "testing"

// A lock that too few replicas have is given back before the process ends.
func TestARefusedRunLeavesNoLockBehind(t *testing.T) {
	t.Parallel()
	topologies(t, func(s *servers) {
		s.want(69, "run", "-replicas", "5", "-wait", "0", "k", "--", "true")
		if r := s.run("inspect", "k"); r.code != exitNo {
			s.t.Errorf("after the refusal: exit code %d\n%s; want a free lock", r.code, r.out)
		}
	})
}
