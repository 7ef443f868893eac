package redisstore

import "strings"

// names is the one place that knows how keys and channels are called.
type names struct{ prefix string }

var escaper = strings.NewReplacer(`\`, `\\`, `{`, `\(`, `}`, `\)`)

// lock is the key of the lock's hash. Braces in the lock's key would move the
// hash tag, so they are escaped, with a backslash that is escaped itself: two
// keys never get one name, and all names of a key stay in one slot.
func (n names) lock(key string) string {
	if strings.ContainsAny(key, `\{}`) {
		key = escaper.Replace(key)
	}
	return n.prefix + ":{" + key + "}"
}

// fence is the key of the last fencing token.
func fenceOf(lock string) string { return lock + ":fence" }

// free is the channel on which releases are announced.
func channelOf(lock string) string { return lock + ":free" }
