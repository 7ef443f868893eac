package history

import (
	"cmp"
	"slices"
	"sort"
)

// RegisterVerdict is the judgement of the writes of one register.
type RegisterVerdict struct {
	// Written is how many writes were acknowledged.
	Written int
	// Lost is how many of them left no trace: the register's last value does not
	// derive from them, because a writer had not read them.
	Lost int
	// Stale is how many were accepted although a claim with a greater token had
	// returned before they were called.
	Stale int
}

// CheckRegister follows the value that a register had in the end back to its
// beginning, each write to the write that its writer had read: acknowledged writes
// that are not on the way are lost. Writes of unknown outcome may be on it or not.
// Claims are the claims of the register, none for one without tokens.
func CheckRegister(claims, writes []Record, last uint64) RegisterVerdict {
	var v RegisterVerdict
	before := make(map[uint64]uint64, len(writes))
	for _, w := range writes {
		before[w.Value] = w.Before
	}
	kept := make(map[uint64]bool, len(writes))
	for value := last; value != 0 && !kept[value]; value = before[value] {
		kept[value] = true
	}

	done := slices.DeleteFunc(slices.Clone(claims), func(c Record) bool { return c.Outcome != Done })
	slices.SortFunc(done, func(a, b Record) int { return cmp.Compare(a.Return, b.Return) })
	highest := make([]int64, len(done)+1) // of the first i claims
	for i, c := range done {
		highest[i+1] = max(highest[i], c.Token)
	}
	for _, w := range writes {
		if w.Outcome != Done {
			continue
		}
		v.Written++
		if !kept[w.Value] {
			v.Lost++
		}
		n := sort.Search(len(done), func(i int) bool { return done[i].Return >= w.Call })
		if highest[n] > w.Token {
			v.Stale++
		}
	}
	return v
}
