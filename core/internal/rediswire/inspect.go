package rediswire

import (
	"strings"
	"sync"
	"time"
	"weak"

	"github.com/interlock-go/interlock/core/internal/logs"
)

// longRead is the least ReadTimeout with a warning: a third of the default lease.
const longRead = 10 * time.Second

// inspected are the clients that were warned about. The pointers are weak, so the list
// keeps no client alive.
var inspected sync.Map

// inspect warns, once for each client, in one line, about options that were chosen for it
// and do not suit handlers under a lock. The store's own connections do not take them
// over. Defaults of go-redis are no reason: the doc of New has the best values for
// handlers.
func inspect[C any](log *logs.Log, client *C, readTimeout time.Duration, replicaReads bool) {
	var change []string
	if replicaReads {
		change = append(change, "set ReadOnly, RouteByLatency and RouteRandomly to false: "+
			"a handler under a lock may read from a replica what the last holder has changed since")
	}
	if readTimeout <= 0 || readTimeout > longRead {
		change = append(change, "set ReadTimeout to at most "+longRead.String()+": "+
			"a handler's command goes on for that long after its lock is lost")
	}
	if change == nil {
		return
	}
	if _, again := inspected.LoadOrStore(weak.Make(client), nil); !again {
		log.Warn("interlock: options of the redis client do not go with work under a lock", "advice", strings.Join(change, "; "))
	}
}
