package zkstore

import (
	"errors"
	"fmt"

	"github.com/go-zookeeper/zk"

	"github.com/interlock-go/interlock/core/casstore"
	"github.com/interlock-go/interlock/core/driver"
)

// meanings has the meaning of each error of ZooKeeper, or of its client, for a transaction.
// After an error that is not listed the transaction may be executed at any later time: so are
// lost connections and sessions, and zk.ErrShortBuffer, which the client also returns for an
// answer that it cannot read.
var meanings = []struct {
	err   error
	means error
}{
	{zk.ErrNoServer, driver.ErrNotReady}, // the client has sent nothing
	{errThrottled, driver.ErrNotReady},   // not executed at all (KeeperException.Code)

	// ZooKeeper compares these before it executes any part (PrepRequestProcessor).
	{zk.ErrNoAuth, casstore.ErrRefused},
	{zk.ErrInvalidACL, casstore.ErrRefused},
	{zk.ErrAuthFailed, casstore.ErrRefused},
	{zk.ErrInvalidPath, casstore.ErrRefused},
	{zk.ErrBadArguments, casstore.ErrRefused},
	{zk.ErrNoChildrenForEphemerals, casstore.ErrRefused},
	{errQuota, casstore.ErrRefused},
}

// The client knows some codes of ZooKeeper by their numbers alone.
var (
	errQuota     = errors.New("unknown error: -125")
	errThrottled = errors.New("unknown error: -127")
)

// explain says what an error means for a request: whether it may have been executed.
func explain(err error) error {
	if err == nil {
		return nil
	}
	for _, one := range meanings {
		if errors.Is(err, one.err) || err.Error() == one.err.Error() {
			return fmt.Errorf("%w: %w", one.means, err)
		}
	}
	return err
}
