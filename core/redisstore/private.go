package redisstore

import (
	"context"
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

const (
	// poolSize is how many connections the store has to a server for what
	// callers ask: the lanes', and some for redirections.
	poolSize = maxLanes + maxFollowing
	// renewalPool is how many it has for renewals, which nothing else can take.
	renewalPool = 2
	// maxFollowing bounds the redirections that are followed at a time.
	maxFollowing = 4
	// dialTries is how often a refused connection is tried before a request
	// fails; the request itself is tried again too.
	dialTries = 1
)

// clientOptions are the options of a client that matter for locks, of whichever
// kind it is.
type clientOptions struct {
	contextTimeout bool
	readTimeout    time.Duration
	retries        int
	replicaReads   bool
}

func optionsOf(o *redis.Options) clientOptions {
	return clientOptions{
		contextTimeout: o.ContextTimeoutEnabled, readTimeout: o.ReadTimeout, retries: o.MaxRetries,
	}
}

func optionsOfCluster(o *redis.ClusterOptions) clientOptions {
	return clientOptions{
		contextTimeout: o.ContextTimeoutEnabled, readTimeout: o.ReadTimeout, retries: o.MaxRedirects,
		replicaReads: o.ReadOnly || o.RouteByLatency || o.RouteRandomly,
	}
}

// inspect warns, in one record, about options under which commands do not do
// what a lock's user expects. The store's own connections do not take them over,
// but those of the handlers that work under a lock do.
func inspect(log *slog.Logger, timeout time.Duration, o clientOptions) {
	var why []any
	if !o.contextTimeout {
		why = append(why, "ContextTimeoutEnabled=false",
			"a handler's commands do not end with the context of its lease")
	}
	wait := o.readTimeout * time.Duration(max(o.retries, 0)+1)
	if near := 30 * time.Second / 3; o.readTimeout <= 0 || wait > near {
		why = append(why, "ReadTimeout x (retries+1) = "+wait.String(),
			"a handler's command can take as long as a lease; keep it below a third of one")
	}
	if o.replicaReads {
		why = append(why, "ReadOnly, RouteByLatency or RouteRandomly",
			"a replica may not know yet what the last holder wrote")
	}
	if len(why) > 0 {
		log.Warn("interlock: redis client options that hurt work under a lock "+
			"(the lock's own connections do not use them, and time out after "+timeout.String()+")", why...)
	}
}

// private is the options for the store's own connections.
func private(o *redis.Options, timeout time.Duration, pool int) *redis.Options {
	c := *o
	c.ContextTimeoutEnabled = true
	c.ReadTimeout, c.WriteTimeout = timeout, timeout
	c.DialTimeout = min(c.DialTimeout, timeout)
	c.DialerRetries = dialTries
	c.PoolTimeout = timeout
	c.MaxRetries = -1
	c.PoolSize, c.MinIdleConns, c.MaxIdleConns, c.MaxActiveConns = pool, 0, 0, 0
	c.MaxConcurrentDials, c.PipelinePoolSize = 0, -1
	c.OnConnect = onConnect(o.OnConnect)
	c.Limiter = nil
	c.DisableIdentity = true // CLIENT SETINFO is a right more, and Redis 7.0 does not know it
	c.AutoPipelineOptions = nil
	c.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	c.ClientSideCacheConfig, c.ClientSideCache = nil, nil
	return &c
}

// privateCluster is the same for a Cluster.
func privateCluster(o *redis.ClusterOptions, timeout time.Duration, pool int) *redis.ClusterOptions {
	c := *o
	c.ContextTimeoutEnabled = true
	c.ReadTimeout, c.WriteTimeout = timeout, timeout
	c.DialTimeout = min(c.DialTimeout, timeout)
	c.DialerRetries = dialTries
	c.PoolTimeout = timeout
	c.MaxRetries = -1
	c.ReadOnly, c.RouteByLatency, c.RouteRandomly = false, false, false
	c.ShardPicker = nil
	c.DisableIdentity = true
	c.PoolSize, c.MinIdleConns, c.MaxIdleConns, c.MaxActiveConns = pool, 0, 0, 0
	c.MaxConcurrentDials, c.PipelinePoolSize = 0, -1
	c.OnConnect = onConnect(o.OnConnect)
	c.AutoPipelineOptions = nil
	c.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return &c
}

// onConnect prepares a new connection.
func onConnect(users func(context.Context, *redis.Conn) error) func(context.Context, *redis.Conn) error {
	return func(ctx context.Context, cn *redis.Conn) error {
		if users != nil {
			if err := users(ctx, cn); err != nil {
				return err
			}
		}
		return loadScripts(ctx, cn)
	}
}
