package rediswire

import (
	"strconv"
	"strings"
	"sync/atomic"
)

// names is the one place that knows how keys and channels are called.
type names struct {
	prefix string
	// db is the ending of the names of channels: empty for the database 0, else "@" and its
	// number. Keys are of one database, channels of all databases of a server.
	db string
}

// namesOf makes the names of a prefix in a database.
func namesOf(prefix string, db int) names {
	n := names{prefix: prefix}
	if db != 0 {
		n.db = "@" + strconv.Itoa(db)
	}
	return n
}

var escaper = strings.NewReplacer(`\`, `\\`, `{`, `\(`, `}`, `\)`)

// lock is the key of the lock's hash. Braces in the lock's key would move the
// hash tag, so they are escaped, with a backslash that is escaped itself: two
// keys never get one name, and all names of a key stay in one slot.
func (n names) lock(key string) string {
	lock, _ := n.with(key, "")
	return lock
}

// Record is the key of an idempotency record's hash. Its id is a hash, and needs
// no escaping; no lock's name has anything between prefix and brace.
func (s *Store) Record(id string) string { return s.names.prefix + ":idem:{" + id + "}" }

// locker is the key of a locker's entry. Its id is random, and needs no escaping.
func (n names) locker(id string) string { return n.prefix + ":locker:{" + id + "}" }

// wanted is the channel for messages to a locker about the locks that it holds. Its id is random:
// no locker of another database has it.
func (n names) wanted(id string) string { return n.prefix + wantedInfix + id }

// ofLocker reports whether a channel belongs to a locker. The channel of a lock has a brace in that place.
func (n names) ofLocker(channel string) bool {
	rest, ok := strings.CutPrefix(channel, n.prefix)
	return ok && strings.HasPrefix(rest, wantedInfix)
}

// mark is the key of a node of a quorum. It shows that the node has kept its votes.
func (n names) mark() string { return n.prefix + ":quorum" }

// TombstoneOf is the key that is left of an expired record.
func TombstoneOf(record string) string { return record + ":gone" }

// Completion is the channel for the announcement of the end of a claim.
func (s *Store) Completion(record string) string { return record + ":done" + s.names.db }

// revokedName is the key that says for a while that an operator has released the lock of an
// owner. The scripts look for it where an owner does not hold its lock.
func (s *Store) revokedName(key, owner string) string {
	return s.names.lock(key) + ":revoked:" + owner
}

const (
	fenceSuffix   = ":fence"
	channelSuffix = ":free"
	wantedInfix   = ":wanted:"
)

// fence is the key of the last fencing token.
func fenceOf(lock string) string { return lock + fenceSuffix }

// channel is the channel for announcements of releases.
func (n names) channel(lock string) string { return lock + channelSuffix + n.db }

// with returns the name of a lock and that name with a suffix: the same text,
// which is made once.
func (n names) with(key, suffix string) (lock, name string) {
	if strings.ContainsAny(key, `\{}`) {
		key = escaper.Replace(key)
	}
	name = n.prefix + ":{" + key + "}" + suffix
	return name[:len(name)-len(suffix)], name
}

// announcements is how releases are announced. It follows the servers, which say whether
// they are nodes of a Cluster, and not the client: a client for one server and one
// for a Cluster may lead to the same server, and PUBLISH does not reach SSUBSCRIBE,
// nor SPUBLISH SUBSCRIBE (https://redis.io/docs/latest/develop/pubsub/).
type announcements struct {
	sharded atomic.Bool // of Redis Cluster: a channel lives on the node of its slot
	known   atomic.Bool // a server has said so; until then the client's type decides
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
