package rediswire

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

const (
	// poolSize is how many connections the store has to a server besides the connections of its
	// pipelines: for redirections, and for rare requests. renewalPool is the same for renewals.
	// Nothing else can take their connections.
	poolSize    = maxFollowing
	renewalPool = 1
	// maxFollowing bounds the redirections that are followed at a time.
	maxFollowing = 4
	// maxTopologyAge is after how long a Cluster's topology is asked for again while
	// it is used, without any error. A former master that still answers, because it
	// was not told that it failed over, is asked for no longer than that.
	maxTopologyAge = 10 * time.Second
	// dialTries is how often a refused connection is tried before a request
	// fails; the request itself is tried again too.
	dialTries = 1
)

// private is the options for the store's own connections.
func private(o *redis.Options, d *dialer, timeout time.Duration, pool int, last setUp) *redis.Options {
	c := *o
	c.ContextTimeoutEnabled = true
	c.ReadTimeout, c.WriteTimeout = timeout, timeout
	c.Dialer, c.DialTimeout = d.through(o.Dialer), d.timeout
	c.DialerRetries = dialTries
	c.PoolTimeout = timeout
	c.MaxRetries = -1
	c.PoolSize, c.MinIdleConns, c.MaxIdleConns, c.MaxActiveConns = pool, 0, 0, 0
	c.MaxConcurrentDials, c.PipelinePoolSize = 0, -1
	c.OnConnect = then(o.OnConnect, last)
	c.Limiter = nil
	c.DisableIdentity = true // CLIENT SETINFO is a right more, and Redis 7.0 does not know it
	c.AutoPipelineOptions = nil
	c.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	c.ClientSideCacheConfig, c.ClientSideCache = nil, nil
	return &c
}

// privateCluster is the same for a Cluster.
func privateCluster(o *redis.ClusterOptions, d *dialer, timeout time.Duration, pool int, last setUp) *redis.ClusterOptions {
	c := *o
	c.ContextTimeoutEnabled = true
	c.ReadTimeout, c.WriteTimeout = timeout, timeout
	c.DialTimeout = d.timeout
	if c.Dialer == nil {
		c.Dialer = redis.NewDialer(&redis.Options{DialTimeout: d.timeout, TLSConfig: o.TLSConfig})
	}
	c.Dialer = d.through(c.Dialer)
	c.DialerRetries = dialTries
	c.PoolTimeout = timeout
	c.MaxRetries = -1
	c.ClusterStateReloadInterval = topologyAge(o.ClusterStateReloadInterval)
	c.ReadOnly, c.RouteByLatency, c.RouteRandomly = false, false, false
	c.ShardPicker = nil
	c.DisableIdentity = true
	c.PoolSize, c.MinIdleConns, c.MaxIdleConns, c.MaxActiveConns = pool, 0, 0, 0
	c.MaxConcurrentDials, c.PipelinePoolSize = 0, -1
	c.OnConnect = then(o.OnConnect, last)
	c.AutoPipelineOptions = nil
	c.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return &c
}

// topologyAge is how old the topology may become; zero is go-redis's default.
func topologyAge(users time.Duration) time.Duration {
	if users <= 0 {
		return maxTopologyAge
	}
	return min(users, maxTopologyAge)
}

// setUp prepares a new connection.
type setUp = func(context.Context, *redis.Conn) error

// then returns the set-up that does both, one after the other; the first may be nil.
func then(first, next setUp) setUp {
	if first == nil {
		return next
	}
	return func(ctx context.Context, cn *redis.Conn) error {
		if err := first(ctx, cn); err != nil {
			return err
		}
		return next(ctx, cn)
	}
}
