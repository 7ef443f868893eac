package etcdstore

import (
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/interlock-go/interlock/core/casstore"
	"github.com/interlock-go/interlock/core/driver"
)

// meanings has the meaning of each error of etcd for a transaction. After an error that
// is not listed, also one of the network, the transaction may be executed at any later
// time. The places are in server/etcdserver of etcd 3.7.
var meanings = []struct {
	err   error
	means error
}{
	// The member asked has not sent the transaction to the others (v3_server.go,
	// api/v3rpc/interceptor.go), or all have refused it before its execution (apply/auth.go).
	{rpctypes.ErrNoLeader, driver.ErrNotReady},
	{rpctypes.ErrTooManyRequests, driver.ErrNotReady},
	{rpctypes.ErrInvalidAuthToken, driver.ErrNotReady},
	{rpctypes.ErrAuthOldRevision, driver.ErrNotReady},

	// The same, and the same transaction is refused later, too (api/v3rpc/key.go, apply/auth.go,
	// apply/corrupt.go).
	{rpctypes.ErrPermissionDenied, casstore.ErrRefused},
	{rpctypes.ErrUserEmpty, casstore.ErrRefused},
	{rpctypes.ErrAuthFailed, casstore.ErrRefused},
	{rpctypes.ErrRequestTooLarge, casstore.ErrRefused},
	{rpctypes.ErrTooManyOps, casstore.ErrRefused},
	{rpctypes.ErrDuplicateKey, casstore.ErrRefused},
	{rpctypes.ErrEmptyKey, casstore.ErrRefused},
	{rpctypes.ErrCorrupt, casstore.ErrRefused},

	// The transaction that first goes over the quota is executed, and so are others until all
	// members know (apply/quota.go); then none is that writes (apply/capped.go).
	{rpctypes.ErrNoSpace, casstore.ErrSettled},
}

// explain says what an error means for a transaction: whether it may have been executed.
func explain(err error) error {
	for _, one := range meanings {
		if is(err, one.err) {
			return fmt.Errorf("%w: %w", one.means, err)
		}
	}
	return err
}

// is reports whether an error is one of some errors of etcd.
func is(err error, some ...error) bool {
	var got rpctypes.EtcdError
	if !errors.As(rpctypes.Error(err), &got) {
		return false
	}
	for _, one := range some {
		var want rpctypes.EtcdError
		if errors.As(one, &want) && got.Error() == want.Error() {
			return true
		}
	}
	return false
}
