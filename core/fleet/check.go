package fleet

import (
	"cmp"
	"context"
	"crypto/rand"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/rediswire"
)

// pings is the number of round trips to each server that [Fleet.Check] measures.
const pings = 9

// Report is the result of [Fleet.Check].
type Report struct {
	// Servers are the servers, of a Cluster with its replicas, sorted by address.
	Servers []Server
	// ClockSpread is the greatest difference between the clocks of two servers, and
	// of the servers and this machine; it includes half a round trip.
	ClockSpread time.Duration
	// Unsafe are the sentences of Store.Check (package redisstore) about settings that the
	// promises of a lock depend on, and the answers of masters that refuse a lock.
	Unsafe []string
	// Notes are sentences about facts that are not known: whether the services demand replicas
	// (redisstore.Replicas), and settings that the user may not read ([driver.NotKnown]).
	Notes []string
	// User is the Redis user of the client; its rights were looked at. It is empty if the
	// server does not name the user.
	User string
	// Tried says that the server does not let this user ask for rights (ACL DRYRUN), so
	// that they were found by trying. That finds the first right that is missing for a lock,
	// a place and an entry.
	Tried bool
	// Missing are the rights that the user lacks, in the order of docs/operations.md.
	Missing []MissingRight
}

// Server is one server of a [Report].
type Server struct {
	// Addr is its address.
	Addr string
	// Role is "master" or "replica".
	Role string
	// Name and Version name the software of the server: redis, or valkey. Version is empty if
	// the user may not ask (INFO).
	Name, Version string
	// Policy is its maxmemory-policy; empty if the user may not ask.
	Policy string
	// Ahead is by how much its clock is ahead of this machine's.
	Ahead time.Duration
	// RoundTrip is the median of some round trips, and Slowest the longest.
	RoundTrip, Slowest time.Duration
	// Err is why it did not answer; else nil. The other fields are empty then.
	Err error
}

// Safe reports whether nothing was found that is wrong.
func (r *Report) Safe() bool {
	missing := func(m MissingRight) bool { return m.Right != configGet } // without it there is a note
	return len(r.Unsafe) == 0 && !slices.ContainsFunc(r.Missing, missing) &&
		!slices.ContainsFunc(r.Servers, func(s Server) bool { return s.Err != nil })
}

// MissingRight is a right that a user lacks.
type MissingRight struct {
	// For is its purpose, in the words of docs/operations.md.
	For string
	// Right is the rule that gives it, such as "+evalsha".
	Right string
}

// Check looks at the servers: their settings, versions and clocks, how long a round trip
// takes, and which rights a Redis user lacks. user is the name of that user; empty
// is the user of the client. Check takes a lock with a random key on each master, and gives it
// back: a server that answers may refuse all locks. Check returns an error if no server
// answered, or if it may not look at the user. A server that did not answer while others did has
// its error in the report.
//
// On any other store than Redis it looks as the Check of the store does, if it has one, and takes a lock. A
// lock that is refused by a server with unsafe settings is the error of the server in the report.
func (f *Fleet) Check(ctx context.Context, user string) (Report, error) { return f.check(ctx, user) }

// servers are the servers of a Redis.
type servers struct {
	rdb  redis.UniversalClient
	wire *rediswire.Store
}

// check is Fleet.Check on Redis.
func (f *servers) check(ctx context.Context, user string) (Report, error) {
	var r Report
	var err error
	if r.Servers, err = f.look(ctx); err != nil {
		return r, err
	}
	least, most := time.Duration(0), time.Duration(0)
	for _, s := range r.Servers {
		least, most = min(least, s.Ahead), max(most, s.Ahead)
	}
	r.ClockSpread = most - least
	answers := func(s Server) bool { return s.Err == nil }
	if !slices.ContainsFunc(r.Servers, answers) {
		if len(r.Servers) > 0 {
			err = r.Servers[0].Err
		}
		return r, cmp.Or(err, driver.ErrUnavailable)
	}
	r.Unsafe, r.Notes, err = f.wire.CheckServers(ctx)
	if rediswire.IsReply(err) {
		r.Unsafe = append(r.Unsafe, "the settings cannot be read: "+err.Error())
	} else if err != nil && !slices.ContainsFunc(r.Servers, func(s Server) bool { return !answers(s) }) {
		return r, err
	}
	if err := f.rights(ctx, user, &r); err != nil {
		return r, err
	}
	return r, f.tryMasters(ctx, &r)
}

// tryMasters takes a lock on each master that answers, and gives it back.
func (f *servers) tryMasters(ctx context.Context, r *Report) error {
	masters, err := f.wire.Masters(ctx)
	if err != nil {
		return rediswire.Wrap(err)
	}
	for _, node := range masters {
		if f.away(r, node) {
			continue
		}
		err := try(ctx, f.wire, driver.AcquireRequest{
			Key: f.keyOf(ctx, node), Owner: strings.ToLower(rand.Text()) + ":1", TTL: time.Second,
			Late: func(driver.Reply, error) {}, Deadline: time.Now().Add(5 * time.Second),
		}, func() {})
		if err != nil && r.missing(forLocks, err) != nil {
			r.Unsafe = append(r.Unsafe, node.Options().Addr+": a lock was refused: "+err.Error())
		}
	}
	return nil
}

// away reports whether a server did not answer.
func (f *servers) away(r *Report, node *redis.Client) bool {
	return slices.ContainsFunc(r.Servers, func(s Server) bool { return s.Err != nil && s.Addr == node.Options().Addr })
}

// keyOf returns a random key of a master.
func (f *servers) keyOf(ctx context.Context, node *redis.Client) (key string) {
	cluster, clustered := f.rdb.(*redis.ClusterClient)
	for range 10_000 { // a Cluster has at most a thousand masters
		key = "interlock doctor/" + rand.Text()
		if !clustered {
			break
		}
		if at, err := cluster.MasterForKey(ctx, f.wire.LockName(key)); err != nil || at.Options().Addr == node.Options().Addr {
			break
		}
	}
	return key
}

// look looks at all servers at the same time.
func (f *servers) look(ctx context.Context) ([]Server, error) {
	var mu sync.Mutex
	var all []Server
	one := func(ctx context.Context, node *redis.Client) error {
		s := lookAt(ctx, node)
		mu.Lock()
		defer mu.Unlock()
		all = append(all, s)
		return nil
	}
	var err error
	switch c := f.rdb.(type) {
	case *redis.Client:
		err = one(ctx, c)
	case *redis.ClusterClient:
		err = c.ForEachShard(ctx, one)
	}
	slices.SortFunc(all, func(a, b Server) int { return cmp.Compare(a.Addr, b.Addr) })
	return all, rediswire.Wrap(err)
}

// lookAt looks at one server.
func lookAt(ctx context.Context, node *redis.Client) Server {
	s := Server{Addr: node.Options().Addr}
	if s.Err = node.Ping(ctx).Err(); s.Err != nil { // this one may connect
		s.Err = rediswire.Wrap(s.Err)
		return s
	}
	var took []time.Duration
	for range pings {
		began := time.Now()
		now, err := node.Time(ctx).Result()
		if err != nil {
			s.Err = rediswire.Wrap(err)
			return s
		}
		d := time.Since(began)
		if len(took) == 0 || d < slices.Min(took) { // the shorter, the more exact
			s.Ahead = now.Sub(began.Add(d / 2))
		}
		took = append(took, d)
	}
	slices.Sort(took)
	s.RoundTrip, s.Slowest = took[pings/2], took[pings-1]
	info, err := node.InfoMap(ctx, "server", "replication", "memory").Result()
	if err != nil {
		return s
	}
	s.Name, s.Version = "redis", info["Server"]["redis_version"]
	if v := info["Server"]["valkey_version"]; v != "" {
		s.Name, s.Version = "valkey", v
	}
	if port := info["Server"]["tcp_port"]; port != "" && !strings.Contains(s.Addr, ":") {
		s.Addr = "port " + port // with Sentinel there is no fixed address
	}
	s.Policy, s.Role = info["Memory"]["maxmemory_policy"], "master"
	if info["Replication"]["role"] != "master" {
		s.Role = "replica"
	}
	return s
}
