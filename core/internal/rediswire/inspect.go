package rediswire

import (
	"log/slog"
	"strings"
	"sync"
	"time"
	"weak"

	"github.com/redis/go-redis/v9"
)

// clientOptions are the options of a client that matter for work under a lock, of
// whichever kind it is.
type clientOptions struct {
	readTimeout  time.Duration
	replicaReads bool
}

func optionsOf(o *redis.Options) clientOptions { return clientOptions{readTimeout: o.ReadTimeout} }

func optionsOfCluster(o *redis.ClusterOptions) clientOptions {
	return clientOptions{
		readTimeout: o.ReadTimeout, replicaReads: o.ReadOnly || o.RouteByLatency || o.RouteRandomly,
	}
}

// longRead is the ReadTimeout from which on there is a warning: a third of the
// default lease.
const longRead = 10 * time.Second

// advice says what to change about options that were chosen for a client, or
// nothing. Defaults of go-redis are not in it: the store's own connections take
// none of them over, and New says what is best for handlers.
func (o clientOptions) advice() string {
	var change []string
	if o.replicaReads {
		change = append(change, "set ReadOnly, RouteByLatency and RouteRandomly to false: "+
			"a handler under a lock may read from a replica what the last holder has changed since")
	}
	if o.readTimeout <= 0 || o.readTimeout > longRead {
		change = append(change, "set ReadTimeout to at most "+longRead.String()+": "+
			"a handler's command goes on for that long after its lock is lost")
	}
	return strings.Join(change, "; ")
}

// inspected are the clients that were warned about, by weak pointers: what is
// remembered keeps none of them alive.
var inspected sync.Map

// inspect warns, once for each client, in one line, about options that do not go
// with what handlers do under a lock. The store's own connections do not take
// them over.
func inspect[C any](log *slog.Logger, client *C, o clientOptions) {
	advice := o.advice()
	if advice == "" {
		return
	}
	if _, again := inspected.LoadOrStore(weak.Make(client), nil); !again {
		log.Warn("interlock: options of the redis client do not go with work under a lock", "advice", advice)
	}
}
