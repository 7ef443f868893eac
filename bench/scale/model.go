package main

import (
	"math"
	"strconv"
	"time"
)

// The model repeats these constants of core and core/redisstore, which are not exported
// because no other code needs them.
const (
	turnTime  = 20 * time.Millisecond // for how long a process passes a lock among its own callers
	grace     = 5 * time.Millisecond  // left by a waiting process to each one before it
	listRoom  = 63                    // lockers in the list of those waiting
	idBytes   = 32                    // of a locker's id
	nameBytes = idBytes + len("~a")   // of a locker in the list
)

// Commands of each script when it is sent alone, with its own EVALSHA.
const (
	cmdTurn    = 9 // EVALSHA EXISTS TIME SET HSET PEXPIRE, and HMGET PTTL DEL where the lock is kept for the process
	cmdRefuse  = 5 // EVALSHA EXISTS HMGET HGETALL PTTL
	cmdEnlist  = 6 // the same and HSET
	cmdRelease = 3 // EVALSHA HMGET DEL
	cmdTell    = 1 // PUBLISH
	cmdKeep    = 2 // HSET PEXPIRE: the lock is kept for the next in turn
	cmdFence   = 1 // SET: the last token of a hand-off
	cmdOffer   = 3 // TIME SET PUBLISH: the lock is offered to the first of these
	cmdPass    = 3 // EVALSHA HMGET DEL: the release of a lock that was offered
	cmdClaim   = 7 // EVALSHA HMGET EXISTS TIME HSET PEXPIRE, then HMGET
	cmdCommit  = 4 // EVALSHA HMGET HSET PEXPIRE
	cmdReplay  = 3 // EVALSHA HMGET, then HMGET
)

// pairCommands is the cost of a lock and its release where no other caller wants
// the key, if as many requests share a call as share says (1 on a Cluster):
// EVALSHA and TIME are per call.
func pairCommands(share float64) float64 { return 6 + 3/share }

// shortTurn is the least that a section costs if each of several processes wants the
// key with one caller at a time: the release with its announcement, which is the
// grant where the lock is offered, and the try of the former holder, which enters the
// list again.
func shortTurn(n int, cluster bool) int {
	if cluster {
		return cmdTurn + cmdEnlist + cmdRelease + cmdKeep + called(n)*cmdTell
	}
	return cmdEnlist + cmdPass + cmdOffer + cmdKeep + (called(n)-1)*cmdTell
}

// called is the number of lockers that a release calls, or offers the lock, if n processes want it.
func called(n int) int { return min(n, 5) }

// fullTurn is the cost of a turn if each of n processes always has callers for the key:
// the release that enters its process again and, where the lock is not offered, the
// grant and the early tries.
func fullTurn(n int, turn time.Duration, cluster bool) float64 {
	if !cluster {
		return float64(cmdPass + cmdOffer + cmdKeep + (called(n)-1)*cmdTell + cmdFence)
	}
	return float64(cmdTurn+cmdRelease+cmdKeep+called(n)*cmdTell+cmdFence) + float64(earlyTries(n, turn, cluster)*cmdRefuse)
}

// earlyTries is how many of n processes ask before a turn has ended. An offer keeps the lock
// for longer than a turn.
func earlyTries(n int, turn time.Duration, cluster bool) int {
	if !cluster {
		return 0
	}
	return min(called(n)-1, int(turn/grace))
}

// turnLength is how long a process keeps a key that others want, if a section
// takes so long: the first end of a section after its time.
func turnLength(section time.Duration) time.Duration {
	return time.Duration(math.Ceil(float64(turnTime)/float64(section))) * section
}

// pairBytes is the size of a lock and its release on the wire, each in a separate call, for a
// key of so many bytes. The replies are a token and a 1.
func pairBytes(key int, cluster bool) (in, out float64) {
	lock, publish := key+len("interlock:{}"), len("PUBLISH")
	if cluster {
		publish = len("SPUBLISH")
	}
	const sha, owner = 40, idBytes + 1 + 5 // with a number of five digits
	acquire := wire(7, sha, 1, lock, lock+len(":fence"), owner, 5, 5, 0, nameBytes)
	release := wire(7, sha, 1, lock, owner, publish, 0)
	return float64(acquire + release), float64(len(":1790000000000000\r\n") + len(":1\r\n"))
}

// callBytes is the size of a call on the wire to a process, if a release calls so many. It has the id of
// that process alone.
func callBytes(key, calls int) int {
	list := calls*len(".~a,") - 1 + idBytes - len(".")
	return wire(len("message"), len("interlock:wanted:")+idBytes, len(": ")+list+key+len("interlock:{}"))
}

// offerBytes is the size of an offer on the wire to the process that gets the lock by it.
func offerBytes(key int) int {
	return wire(len("message"), len("interlock:wanted:")+idBytes, len("=1790000000000000+ ")+key+len("interlock:{}"))
}

// listBytes is the reply to a release that has called so many lockers.
func listBytes(listed int) int { return wire(max(0, listed*(nameBytes+1)-1)) }

// refusalBytes is the reply to a try that finds the lock held: its holder, its
// time, and that the asker is listed.
var refusalBytes = wire(idBytes+1+5) + len(":30000\r\n:1\r\n")

// listed is how many of n waiting processes the list has room for.
// wire is the length of a command or message with parts of these lengths (RESP).
func wire(parts ...int) int {
	total := len("*\r\n") + len(strconv.Itoa(len(parts)))
	for _, n := range parts {
		total += len("$\r\n\r\n") + len(strconv.Itoa(n)) + n
	}
	return total
}
