package casstore_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core/casstore"
	"github.com/interlock-go/interlock/core/casstore/castest"
	"github.com/interlock-go/interlock/core/driver"
)

// guarded is a server that refuses what reads an entry, once it is closed to the user.
type guarded struct {
	casstore.Server
	closed string
}

func (g *guarded) Commit(ctx context.Context, txn casstore.Txn) (casstore.Answer, error) {
	if g.closed != "" && slices.ContainsFunc(txn.Read, func(name string) bool { return strings.Contains(name, g.closed) }) {
		return casstore.Answer{}, fmt.Errorf("%w: permission denied", casstore.ErrRefused)
	}
	return g.Server.Commit(ctx, txn)
}

// One transaction renews many leases. One lock failed all of them when the user lost the
// right to read its node.
func TestARefusedRenewalFailsNoLeaseBesideIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &guarded{Server: castest.NewMemory()}
		s, err := casstore.New(server)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		var batch []driver.Renewal
		for i := range 20 {
			key, owner := fmt.Sprintf("k%02d", i), fmt.Sprintf("o:%d", i)
			rep, err := s.Acquire(t.Context(), driver.AcquireRequest{
				Key: key, Owner: owner, TTL: time.Minute, Deadline: time.Now().Add(time.Minute),
			})
			if err != nil || !rep.Granted {
				t.Fatalf("Acquire returns %+v, %v; want a grant", rep, err)
			}
			batch = append(batch, driver.Renewal{Key: key, Owner: owner, TTL: time.Minute})
		}
		server.closed = "k07"
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		outcomes := make([]error, len(batch))
		s.Renew(ctx, batch, func(i int, _ bool, err error) { outcomes[i] = err })
		for i, err := range outcomes {
			if refused := errors.Is(err, casstore.ErrRefused); refused != (i == 7) || i != 7 && err != nil {
				t.Errorf("%s: %v; want an error for k07 alone", batch[i].Key, err)
			}
		}
	})
}
