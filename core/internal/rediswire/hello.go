package rediswire

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core/driver"
)

// minMajor is the first version of Redis that has all that the scripts use
// (PEXPIRE .. GT, sharded pub/sub).
const minMajor = 7

// announcements is how releases are announced. It follows the servers, which say whether
// they are nodes of a Cluster, and not the client: a client for one server and one
// for a Cluster may lead to the same server, and PUBLISH does not reach SSUBSCRIBE,
// nor SPUBLISH SUBSCRIBE (https://redis.io/docs/latest/develop/pubsub/).
type announcements struct {
	sharded atomic.Bool // of Redis Cluster: a channel lives on the node of its slot
	known   atomic.Bool // a server has said so; until then the client's type decides
	plain   string      // the first argument of scripts that make the name of the channel
}

// The commands that announce a release.
var plainPublish, shardedPublish = "PUBLISH", "SPUBLISH"

// Publish returns the command that announces something, as an argument of a script.
func (s *Store) Publish() *string {
	if s.announce.sharded.Load() {
		return &shardedPublish
	}
	return &plainPublish
}

// announces is [Store.Publish] for a script that makes the name of the channel itself, to
// which it puts what names.db says.
func (s *Store) announces() *string {
	if s.announce.sharded.Load() {
		return &shardedPublish
	}
	return &s.announce.plain
}

// introduce asks the server of a new connection what it is. An error means that the
// connection must not be used: the server is too old, or did not answer. A server
// that does not say is taken for a good one.
func (s *Store) introduce(ctx context.Context, cn *redis.Conn) error {
	hello, err := cn.Do(ctx, "hello").Result()
	switch {
	case err == nil:
		says := fieldsOf(hello)
		if mode := says["mode"]; mode == "cluster" || mode == "standalone" {
			s.announce.sharded.Store(mode == "cluster")
			s.announce.known.Store(true)
		}
		if says["server"] != "redis" { // Valkey begins with 7.2
			return nil
		}
		return recent(says["version"])
	case !IsReply(err):
		return err
	case missing(err.Error()) != "":
		return nil
	}
	// HELLO came with Redis 6.0, and without an argument with 6.2.
	info, err := cn.Info(ctx, "server").Result()
	if err != nil {
		// Servers in memory for tests word their errors as they like: any answer
		// says that there is none.
		if reply := redis.Error(nil); errors.As(err, &reply) {
			return nil
		}
		return err
	}
	for line := range strings.Lines(info) {
		if version, ok := strings.CutPrefix(strings.TrimSpace(line), "redis_version:"); ok {
			return recent(version)
		}
	}
	return nil
}

// recent returns an error for a version of Redis that lacks what the scripts use.
// go-redis takes one wrapping off.
func recent(version string) error {
	if !older(version, minMajor) {
		return nil
	}
	return fmt.Errorf("meeting the server: %w",
		fmt.Errorf("%w: Redis %s is too old: the scripts need %d.0 or newer", driver.ErrConfig, version, minMajor))
}

// fieldsOf reads the answer to HELLO: a map, in RESP2 a list of names and values.
func fieldsOf(hello any) map[string]string {
	fields := map[string]string{}
	add := func(name, value any) {
		n, ok := name.(string)
		if v, isText := value.(string); ok && isText {
			fields[n] = v
		}
	}
	switch all := hello.(type) {
	case map[any]any:
		for name, value := range all {
			add(name, value)
		}
	case []any:
		for i := 0; i+1 < len(all); i += 2 {
			add(all[i], all[i+1])
		}
	}
	return fields
}
