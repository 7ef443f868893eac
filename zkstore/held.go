package zkstore

import (
	"context"
	"slices"

	"github.com/go-zookeeper/zk"

	"github.com/interlock-go/interlock/core/casstore"
)

// Held returns checks, each a *zk.CheckVersionRequest, for a Multi of the user. They succeed while
// the lease's process has the lock, whoever waits for it:
//
//	held, err := store.Held(ctx, lease)
//	if err != nil {
//		return err
//	}
//	_, err = conn.Multi(append(held, &zk.SetDataRequest{Path: "/balance/42", Data: []byte("90"), Version: -1})...)
//
// After the end of the hold the Multi returns zk.ErrBadVersion or zk.ErrNoNode. The first call for a
// lease sends a transaction, later calls send nothing. Of callers that hand a lock on within a
// process each calls Held, and not only the first. The errors are as in [casstore.Store.Held]:
// driver.ErrConfig for a shared lock or a permit, which have no such check.
func (s *Store) Held(ctx context.Context, lease casstore.Lease) (held []any, err error) {
	conditions, err := s.Store.Held(ctx, lease)
	if err != nil {
		return nil, err
	}
	for _, c := range conditions {
		held = append(held, &zk.CheckVersionRequest{Path: path(c.Name), Version: int32(c.Revision.Version)})
	}
	return slices.Clip(held), nil // so that callers can append to it at the same time
}
