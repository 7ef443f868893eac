package casstore_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/interlock-go/interlock/core/casstore"
	"github.com/interlock-go/interlock/core/casstore/castest"
	"github.com/interlock-go/interlock/core/driver"
	operator "github.com/interlock-go/interlock/core/fleet"
)

// An entry can be of a later version, or be damaged. It hides no other lock, and is not taken for a free one.
func TestALockThatCannotBeReadIsNamedAfterAllOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := castest.NewMemory()
		m := start(t, server)
		for _, key := range []string{"a", "b", "c"} {
			m.lock(t, key)
		}
		damage := casstore.Txn{Then: []casstore.Op{{Name: "interlock/b/lock", Value: "9 of a later version"}}}
		if _, err := server.Commit(t.Context(), damage); err != nil {
			t.Fatal(err)
		}
		f, err := operator.On(m.store)
		if err != nil {
			t.Fatal(err)
		}
		for pattern, want := range map[string]struct {
			keys  string
			fails error
		}{"": {"a c", operator.ErrIncomplete}, "c*": {"c", nil}, "b": {"", driver.ErrKeyOccupied}} {
			var keys []string
			var failed error
			for l, err := range f.Locks(t.Context(), pattern) {
				if failed = err; err == nil {
					keys = append(keys, l.Key)
				}
			}
			if got := strings.Join(keys, " "); got != want.keys {
				t.Errorf("the locks of %q are %s; want %s", pattern, got, want.keys)
			}
			if !errors.Is(failed, want.fails) || failed != nil && !strings.Contains(failed.Error(), "/b/lock") {
				t.Errorf("the list of %q ends with %v; want %v, with the name of the lock", pattern, failed, want.fails)
			}
		}
	})
}
