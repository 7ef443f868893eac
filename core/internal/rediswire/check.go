package rediswire

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core/driver"
)

// Check asks all masters for the settings that the promises of a lock depend on. It returns a
// sorted list of sentences, one for each unsafe setting; the list is empty if all is well. Use it
// at start-up and for alerts. It needs the right to INFO and, for appendfsync alone, to CONFIG
// GET; without that, one sentence has the text [driver.NotKnown]. The error says that a server did
// not answer. Check is safe for concurrent use.
func (s *Store) Check(ctx context.Context) ([]string, error) {
	unsafe, notes, err := s.CheckServers(ctx)
	unsafe = append(unsafe, notes...)
	slices.Sort(unsafe)
	return unsafe, err
}

// CheckServers is [Store.Check] with two kinds of sentences apart: those about the replicas that the
// store demands, which say nothing of a store in another process, and those about settings that
// cannot be read. With an error it returns the sentences about the masters that answered.
func (s *Store) CheckServers(ctx context.Context) (unsafe, notes []string, err error) {
	var mu sync.Mutex
	look := func(ctx context.Context, node *redis.Client) error {
		found, noted, err := s.inspectServer(ctx, node)
		mu.Lock()
		defer mu.Unlock()
		unsafe, notes = append(unsafe, found...), append(notes, noted...)
		return err
	}
	if s.clustered() {
		err = s.requests.cluster.ForEachMaster(ctx, look)
	} else {
		err = look(ctx, s.requests.single)
	}
	slices.Sort(unsafe)
	slices.Sort(notes)
	return unsafe, notes, Wrap(err)
}

// inspectServer looks at one master.
func (s *Store) inspectServer(ctx context.Context, node *redis.Client) (found, notes []string, err error) {
	addr := node.Options().Addr
	say := func(format string, args ...any) { found = append(found, addr+": "+fmt.Sprintf(format, args...)) }
	note := func(format string, args ...any) { notes = append(notes, addr+": "+fmt.Sprintf(format, args...)) }
	if s.keyspace.findsSeveral(ctx, node) {
		say("%v, and only one of them is looked at here; docs/managed.md says what such a proxy takes away", errDivided)
	}
	info, err := node.InfoMap(ctx, "server", "memory", "persistence", "replication").Result()
	if IsReply(err) {
		say("it cannot be asked what it is (%v): nothing is known of its version, its replicas and its settings", err)
		return found, notes, nil
	}
	if err != nil {
		return found, notes, err
	}
	if port := info["Server"]["tcp_port"]; port != "" && !strings.Contains(addr, ":") {
		addr = "the master with port " + port // with Sentinel there is no fixed address
	}
	if version := info["Server"]["redis_version"]; older(version, 7) {
		say("Redis %s is too old: the scripts need 7.0", version)
	}
	replicas, _ := strconv.Atoi(info["Replication"]["connected_slaves"])
	if info["Replication"]["role"] != "master" {
		say("it is a replica; locks must be asked of the master")
	}
	if replicas < s.ack.replicas {
		say("%d replicas are connected and Replicas asks for %d: no lock can be taken", replicas, s.ack.replicas)
	}

	memory := info["Memory"]
	if policy := memory["maxmemory_policy"]; policy != "noeviction" && policy != "" && memory["maxmemory"] != "0" {
		say("maxmemory-policy is %s: locks are removed when memory is full; use noeviction", policy)
	}
	persists := info["Persistence"]["aof_enabled"]
	switch {
	case persists == "":
		note(driver.NotKnown + "whether appendonly is on; without it, a restart forgets all locks")
	case persists == "0" && replicas == 0:
		say("appendonly is off: a restart forgets all locks, and the next caller gets a lock that is held")
	case persists == "0":
		say("appendonly is off: a master that restarts before a replica is promoted has forgotten all locks, " +
			"and its replicas forget them too")
	}
	if replicas > 0 {
		if info["Replication"]["min_slaves_good_slaves"] == "" { // which is there if it is set
			say("min-replicas-to-write is 0: a master that was cut off goes on granting locks after a failover")
		}
		if s.ack.replicas == 0 {
			note("it has replicas and Replicas is not set: a failover loses the locks that were not replicated yet")
		} else if s.ack.replicas < replicas {
			note("Replicas asks for %d of %d: a replica that does not have a lock may be promoted", s.ack.replicas, replicas)
		}
	}
	if persists != "1" {
		return found, notes, nil
	}
	// INFO does not have this one, and managed services do not allow CONFIG.
	switch settings, err := node.ConfigGet(ctx, "appendfsync").Result(); {
	case IsReply(err):
		note(driver.NotKnown+"appendfsync (%v); with the value no, a crash of the machine forgets the locks of the last half minute", err)
	case err != nil:
		return found, notes, err
	case settings["appendfsync"] == "no":
		say("appendfsync is no: a crash of the machine forgets the locks of the last half minute; use everysec or always")
	}
	return found, notes, nil
}

// older reports whether a version's first number is below one.
func older(version string, major int) bool {
	first, _, _ := strings.Cut(version, ".")
	n, err := strconv.Atoi(first)
	return err == nil && n < major
}
