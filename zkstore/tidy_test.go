package zkstore

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core/casstore"
)

// The nodes of deleted entries stayed for up to 45 minutes, however many there were.
func TestManyDeletedEntriesAreTidiedSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		server := newServer(f.connect(t, 0))
		store, err := casstore.New(server)
		if err != nil {
			t.Fatal(err)
		}
		s := &Store{Store: store, server: server}
		s.done, s.end = context.WithCancel(context.Background())
		s.work.Go(s.tidy)
		defer s.Close()
		for i := range many {
			name := fmt.Sprintf("r/%d", i)
			for _, deleted := range []bool{false, true} {
				if _, err := server.Commit(t.Context(), casstore.Txn{Then: []casstore.Op{{Name: name, Value: "v", Delete: deleted}}}); err != nil {
					t.Fatal(err)
				}
			}
		}
		time.Sleep(5 * busy) // three rounds of at most one and a half: two epochs end, and then the nodes of the first go
		f.mu.Lock()
		defer f.mu.Unlock()
		if n := len(f.nodes); n > 10 {
			t.Errorf("%d nodes are left of %d deleted entries after %v; want the root's alone", n, many, 5*busy)
		}
	})
}
