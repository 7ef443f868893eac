package redistest

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// topologyTimeout bounds how long servers may take to find one another. A
// Cluster takes 2 s on an idle machine, a Sentinel set 2.5 s.
const topologyTimeout = 60 * time.Second

// ReplicaSet is a master with its replicas.
type ReplicaSet struct {
	Master   *Server
	Replicas []*Server
}

// Replicated starts a master and n replicas and returns once all of them are in
// sync. Nothing fails over by itself here, see [Sentinel] and [Cluster].
func Replicated(tb testing.TB, n int, opts ...Option) *ReplicaSet {
	tb.Helper()
	cfg := newConfig(tb.TempDir(), opts)
	set := &ReplicaSet{Master: startAll(tb, cfg)[0]}
	cfgs := make([]config, n)
	for i := range cfgs {
		cfgs[i] = cfg.with("--replicaof", "127.0.0.1 "+strconv.Itoa(set.Master.port))
	}
	set.Replicas = startAll(tb, cfgs...)
	set.AwaitSync(tb)
	return set
}

// AwaitSync waits until every replica that runs has all the master has written
// so far.
func (r *ReplicaSet) AwaitSync(tb testing.TB) {
	tb.Helper()
	offset := r.Master.Stat(tb, "master_repl_offset")
	for _, replica := range r.Replicas {
		if replica.current().dead() {
			continue
		}
		Eventually(tb, topologyTimeout, func(ctx context.Context) error {
			return replica.hasReplicated(ctx, offset)
		})
	}
}

// hasReplicated is nil once s is a replica in sync up to the master's offset.
func (s *Server) hasReplicated(ctx context.Context, offset int64) error {
	return s.admin(ctx, func(rdb *redis.Client) error {
		info, err := rdb.Info(ctx, "replication").Result()
		if err != nil {
			return err
		}
		if link := infoField(info, "master_link_status"); link != "up" {
			return fmt.Errorf("%s: link to the master is %q", s.Addr(), link)
		}
		got, err := strconv.ParseInt(infoField(info, "slave_repl_offset"), 10, 64)
		if err == nil && got < offset {
			err = fmt.Errorf("%s is at offset %d of %d", s.Addr(), got, offset)
		}
		return err
	})
}

// isMaster is nil when s answers and says that it is a master.
func (s *Server) isMaster(ctx context.Context) error {
	return s.admin(ctx, func(rdb *redis.Client) error {
		info, err := rdb.Info(ctx, "replication").Result()
		if role := infoField(info, "role"); err == nil && role != "master" {
			err = fmt.Errorf("%s is a %s", s.Addr(), role)
		}
		return err
	})
}

// firstMaster is nil, and *found the server, when a server is a master.
func firstMaster(ctx context.Context, servers []*Server, found **Server) error {
	var errs []error
	for _, s := range servers {
		err := s.isMaster(ctx)
		if err == nil {
			*found = s
			return nil
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
