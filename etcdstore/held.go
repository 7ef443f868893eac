package etcdstore

import (
	"context"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/interlock-go/interlock/core/casstore"
)

// Held returns comparisons for a transaction of the user, on the store's client or on another
// one with the same namespace. They hold while the lease's process has the lock, whoever waits for
// it:
//
//	held, err := store.Held(ctx, lease)
//	if err != nil {
//		return err
//	}
//	done, err := client.Txn(ctx).If(held...).Then(clientv3.OpPut("balance/42", "90")).Commit()
//	if err == nil && !done.Succeeded {
//		return core.ErrLost
//	}
//
// The first call for a lease sends a transaction, later calls send nothing. Of callers that hand a
// lock on within a process each calls Held, and not only the first. Errors are those of
// [casstore.Store.Held]: driver.ErrConfig for a shared lock or a permit, which have no such comparison.
func (s *Store) Held(ctx context.Context, lease casstore.Lease) ([]clientv3.Cmp, error) {
	conditions, err := s.Store.Held(ctx, lease)
	if err != nil {
		return nil, err
	}
	held, _, _ := operations(casstore.Txn{If: conditions})
	return held, nil
}
