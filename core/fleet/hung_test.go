package fleet_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core/fleet"
	_ "github.com/interlock-go/interlock/internal/bubble"
)

const (
	hungMaster   = "10.0.0.1:6379"
	livingMaster = "10.0.0.2:6379"
	heldThere    = 200 // locks of as many processes on the living master
)

// halfHung answers for the two masters of a Cluster, each of which has half of the slots. The first takes
// requests and never answers.
type halfHung struct {
	addr  string
	names *[]string // of the living master
}

func (h halfHung) DialHook(redis.DialHook) redis.DialHook {
	return func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("no network") }
}

func (h halfHung) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error { return h.answer(ctx, cmd) }
}

func (h halfHung) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) (err error) {
		for _, cmd := range cmds {
			err = errors.Join(err, h.answer(ctx, cmd))
		}
		return err
	}
}

func (h halfHung) answer(ctx context.Context, cmd redis.Cmder) error {
	if h.addr == hungMaster {
		select {
		case <-ctx.Done():
		case <-time.After(time.Minute): // the timeout of a user's client
		}
		err := errors.Join(errors.New("i/o timeout"), ctx.Err())
		cmd.SetErr(err)
		return err
	}
	switch cmd := cmd.(type) {
	case *redis.ScanCmd:
		if strings.EqualFold(cmd.Name(), "hscan") {
			owner := fmt.Sprintf("%x:1", sha256.Sum256([]byte(cmd.Args()[1].(string)))) // of any slot
			cmd.SetVal([]string{owner, "7"}, 0)
			break
		}
		cmd.SetVal(*h.names, 0)
	case *redis.IntCmd:
		cmd.SetVal(1)
	case *redis.DurationCmd:
		cmd.SetVal(time.Minute)
	case *redis.TimeCmd:
		cmd.SetVal(time.Now())
	case *redis.MapStringStringCmd:
		cmd.SetVal(map[string]string{"host": "living", "pid": "1"})
	}
	return nil
}

// Of each eight locks on the living master some belong to processes with a name on the other: each eight waited
// two seconds for it.
func TestAListOfLivingLocksWaitsForAHungMasterOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rdb := redis.NewClusterClient(&redis.ClusterOptions{
			ContextTimeoutEnabled: true,
			ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
				return []redis.ClusterSlot{
					{Start: 0, End: 8191, Nodes: []redis.ClusterNode{{Addr: hungMaster}}},
					{Start: 8192, End: 16383, Nodes: []redis.ClusterNode{{Addr: livingMaster}}},
				}, nil
			},
		})
		var names []string
		rdb.OnNewNode(func(node *redis.Client) { node.AddHook(halfHung{node.Options().Addr, &names}) })
		for i := 0; len(names) < heldThere; i++ {
			name := fmt.Sprintf("interlock:{k%d}", i)
			if node, err := rdb.MasterForKey(t.Context(), name); err != nil {
				t.Fatal(err)
			} else if node.Options().Addr == livingMaster {
				names = append(names, name)
			}
		}
		f, err := fleet.New(rdb)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _, _ = f.Close(), rdb.Close() }()
		began, found, named := time.Now(), 0, 0
		for l, err := range f.Locks(t.Context(), "") {
			switch {
			case errors.Is(err, fleet.ErrIncomplete):
			case err != nil:
				t.Fatal(err)
			default:
				if found++; l.Holders[0].Locker.Host == "living" {
					named++
				}
			}
		}
		if found != heldThere || named < heldThere/4 {
			t.Errorf("%d locks, %d with the names of their processes; want all %d, and the names on the living master", found, named, heldThere)
		}
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("it took %v; want the time of one page, and of the names of eight locks", took)
		}
	})
}
