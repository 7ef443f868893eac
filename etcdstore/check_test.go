package etcdstore

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/interlock-go/interlock/core/driver"
)

// asked is an etcd that says how it is.
type asked struct {
	clientv3.KV
	clientv3.Cluster
	clientv3.Maintenance

	revision, compacted int64
	members             []*etcdserverpb.Member
	alarms              []*etcdserverpb.AlarmMember
	refuses             error // all but reads of entries
	down                error
	plain               bool // the client is not from Connect
}

func (a *asked) Get(_ context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	if a.refuses != nil && !strings.HasPrefix(key, "interlock/") {
		return nil, a.refuses
	}
	if op := clientv3.OpGet(key, opts...); op.Rev() > 0 && op.Rev() < a.compacted {
		return nil, rpctypes.ErrCompacted
	}
	return &clientv3.GetResponse{Header: &etcdserverpb.ResponseHeader{Revision: a.revision}}, a.down
}

func (a *asked) MemberList(context.Context, ...clientv3.OpOption) (*clientv3.MemberListResponse, error) {
	return &clientv3.MemberListResponse{Members: a.members}, a.refuses
}

func (a *asked) AlarmList(context.Context) (*clientv3.AlarmResponse, error) {
	return &clientv3.AlarmResponse{Alarms: a.alarms}, a.refuses
}

func members(voters, learners int) []*etcdserverpb.Member {
	all := make([]*etcdserverpb.Member, voters+learners)
	for i := range all {
		all[i] = &etcdserverpb.Member{IsLearner: i >= voters}
	}
	return all
}

func TestCheckNamesWhatIsUnsafe(t *testing.T) {
	for name, c := range map[string]struct {
		etcd  asked
		known int      // endpoints that the client knows
		want  []string // a part of each sentence
	}{
		"three members":              {asked{revision: 10, members: members(3, 0)}, 3, nil},
		"one member":                 {asked{members: members(1, 0)}, 1, []string{"1 members vote: with fewer than 3"}},
		"a learner does not vote":    {asked{members: members(2, 1)}, 3, []string{"2 members vote: with fewer than 3"}},
		"four members":               {asked{members: members(4, 0)}, 4, []string{"4 members vote: one more than 3"}},
		"an endpoint of three":       {asked{members: members(3, 0)}, 1, []string{"the client knows 1 endpoints of 3 members"}},
		"nothing compacts":           {asked{revision: keptRevisions + 5, members: members(3, 0)}, 3, []string{"--auto-compaction-retention"}},
		"what is old was compacted":  {asked{revision: keptRevisions + 5, compacted: 6, members: members(3, 0)}, 3, nil},
		"a client of clientv3.New":   {asked{members: members(3, 0), plain: true}, 3, []string{"the client is not from etcdstore.Connect"}},
		"two faults":                 {asked{revision: keptRevisions + 5, members: members(1, 0)}, 1, []string{"1 members vote", "etcd still has"}},
		"the user may ask for locks": {asked{refuses: rpctypes.ErrPermissionDenied}, 3, []string{"not known: the alarms", "not known: the members"}},
		"the user may ask for nothing": {
			asked{members: members(3, 0), down: rpctypes.ErrPermissionDenied}, 3, []string{"not known: the revisions"},
		},
		"a full disk": {
			asked{members: members(3, 0), alarms: []*etcdserverpb.AlarmMember{{MemberID: 0xa1, Alarm: etcdserverpb.AlarmType_NOSPACE}}},
			3,
			[]string{"member a1 has the alarm NOSPACE"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			found, err := c.etcd.store(t, c.known).Check(t.Context())
			if err != nil || !slices.EqualFunc(found, c.want, strings.Contains) {
				t.Errorf("%q, %v; want %q", found, err, c.want)
			}
		})
	}
	down := asked{down: rpctypes.ErrNoLeader}
	if _, err := down.store(t, 3).Check(t.Context()); !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("without a leader: %v; want ErrUnavailable", err)
	}
}

// store makes a store with a client that asks this etcd, and knows some endpoints.
func (a *asked) store(t *testing.T, known int) *Store {
	t.Helper()
	dial := Connect
	if a.plain {
		dial = clientv3.New
	}
	client, err := dial(clientv3.Config{Endpoints: []string{"m1:1", "m2:1", "m3:1", "m4:1"}[:known]})
	if err != nil {
		t.Fatal(err)
	}
	client.KV, client.Cluster, client.Maintenance = a, a, a
	t.Cleanup(func() { _ = client.Close() })
	store, err := New(client)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	return store
}
