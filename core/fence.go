package core

import (
	"cmp"
	"context"
	"slices"

	"github.com/interlock-go/interlock/core/driver"
)

// Fence is the key of a lock and the fencing token of its holder.
type Fence struct {
	Key   string
	Token int64
}

// Fences returns the keys and fencing tokens of all locks that ctx runs under alone,
// sorted by key, each key once. Claim them in this order in the resource that the locks
// protect (package core/fencing). Shared locks and permits have several holders with
// different tokens, so they are not in the list. It is empty if ctx runs under no
// lease.
func Fences(ctx context.Context) []Fence {
	var fences []Fence
	for l := LeaseFromContext(ctx); l != nil; l = l.outer() {
		for _, w := range l.locks() {
			if w.Terms.Kind == driver.Exclusive {
				fences = append(fences, Fence{w.Key(), w.Token()})
			}
		}
	}
	slices.SortFunc(fences, func(a, b Fence) int {
		return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(b.Token, a.Token))
	})
	return slices.CompactFunc(fences, func(a, b Fence) bool { return a.Key == b.Key })
}
