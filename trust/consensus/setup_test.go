//go:build long && linux

package consensus_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/casstore"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/etcdstore"
)

func TestCheckNamesWhatIsUnsafe(t *testing.T) {
	c := newCluster(t)
	check := func(client *clientv3.Client) ([]string, error) {
		ctx, cancel := timeout(t, limit)
		defer cancel()
		return open(t, client).Check(ctx)
	}
	if found, err := check(c.client()); err != nil || len(found) > 0 {
		t.Errorf("three members: %q, %v", found, err)
	}
	one := connect(t, c.members[0].addr)
	found, err := check(one)
	if err != nil || len(found) != 1 || !strings.Contains(found[0], "1 endpoints of 3 members") {
		t.Errorf("a client that knows one member: %q, %v", found, err)
	}
	c.members[1].kill()
	c.members[2].kill()
	ctx, cancel := timeout(t, 2*time.Second)
	defer cancel()
	if _, err := open(t, one).Check(ctx); !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("without a majority: %v; want ErrUnavailable", err)
	}
}

// authenticated makes a client of a user that has the rights of docs/consensus.md.
func authenticated(t *testing.T, c *cluster) *clientv3.Client {
	t.Helper()
	root, ctx := c.client(), t.Context()
	for _, err := range []error{
		second(root.RoleAdd(ctx, "interlock")),
		second(root.RoleGrantPermission(ctx, "interlock", "interlock/", clientv3.GetPrefixRangeEnd("interlock/"),
			clientv3.PermissionType(clientv3.PermReadWrite))),
		second(root.UserAdd(ctx, "root", "secret")),
		second(root.UserGrantRole(ctx, "root", "root")),
		second(root.UserAdd(ctx, "bank", "secret")),
		second(root.UserGrantRole(ctx, "bank", "interlock")),
		second(root.AuthEnable(ctx)),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	bank, err := etcdstore.Connect(clientv3.Config{
		Endpoints: root.Endpoints(), Username: "bank", Password: "secret", Logger: zap.NewNop(),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = bank.Close() })
	return bank
}

// A watch keeps its stream open, and the token of the stream has ended. Another watch must
// work, and so must locks.
func TestWatchesGoOnAfterATokenHasEnded(t *testing.T) {
	bank := authenticated(t, newCluster(t))
	server := etcdstore.Server(bank)
	first := make(chan struct{}, 1)
	go func() {
		_ = server.Watch(t.Context(), "interlock/a/", func([]casstore.Change) {
			select {
			case first <- struct{}{}:
			default:
			}
		})
	}()
	select {
	case <-first:
	case <-time.After(limit):
		t.Fatal("the first watch reports nothing")
	}
	pause(3 * tokenLife) // a member forgets a token later than that by one tick
	var err error
	for range 3 {
		ctx, cancel := timeout(t, limit)
		reported := false
		err = server.Watch(ctx, "interlock/b/", func([]casstore.Change) {
			reported = true
			cancel()
		})
		if cancel(); reported {
			return
		}
	}
	t.Errorf("no new watch works after the token of the stream has ended: %v", err)
}

// The rights of docs/consensus.md are enough for locks, and no more than that.
func TestARoleOnThePrefixIsEnough(t *testing.T) {
	ctx := t.Context()
	bank := authenticated(t, newCluster(t))
	store := open(t, bank, casstore.Timeout(limit))
	locker, err := core.New(store)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = locker.Close(context.Background()) }()
	if err := locker.Do(ctx, "account/42", func(context.Context) error { return nil }); err != nil {
		t.Errorf("with the rights of the document: %v", err)
	}
	elsewhere := open(t, bank, casstore.Prefix("elsewhere"), casstore.Timeout(limit))
	for _, part := range []struct {
		store  *etcdstore.Store
		denied bool
	}{{store, false}, {elsewhere, true}} {
		found, err := part.store.Check(ctx)
		denied := slices.ContainsFunc(found, func(s string) bool { return strings.Contains(s, "not known: the revisions") })
		if err != nil || denied != part.denied {
			t.Errorf("Check: %q, %v", found, err)
		}
	}
	other, err := core.New(elsewhere)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close(context.Background()) }()
	begin := time.Now()
	if _, err := other.Lock(ctx, "k"); !errors.Is(err, core.ErrUnavailable) {
		t.Errorf("without the right: %v; want ErrUnavailable", err)
	}
	if took := time.Since(begin); took > limit {
		t.Errorf("a missing right was said after %v", took)
	}
}

func second[T any](_ T, err error) error { return err }
