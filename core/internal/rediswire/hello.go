package rediswire

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core/driver"
)

// minMajor is the oldest version of Redis with all that the scripts use
// (PEXPIRE .. GT, sharded pub/sub).
const minMajor = 7

// introduce asks the server of a new connection for its identity. An error means that
// the connection must not be used: the server is too old, or did not answer. A server
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

// recent returns an error for a version of Redis that lacks commands of the scripts.
// go-redis takes one wrapping off.
func recent(version string) error {
	if !older(version, minMajor) {
		return nil
	}
	return fmt.Errorf("meeting the server: %w",
		fmt.Errorf("%w: %w", driver.ErrConfig, fmt.Errorf("the version %s of Redis is too old: the scripts need %d.0 or newer", version, minMajor)))
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
