package rediswire

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core/driver"
)

// fate is the state of knowledge about a try that has ended with an error.
type fate int

const (
	refused   fate = iota // the server answered with an error that will not change: nothing was done
	unsent                // it never left: nothing was done
	unknown               // it may have been, or may yet be, executed
	failed                // the server answered with an error that says nothing of all this
	notReady              // the server cannot serve the key at this moment
	noScript              // the server does not know the script
	elsewhere             // another node serves the key (Cluster)
)

// Replies of a server that will be able to serve the key in a while: it starts,
// fails over, or is moving the slot.
var notReadyReplies = []string{
	"LOADING ", "TRYAGAIN ", "CLUSTERDOWN ", "MASTERDOWN ", "READONLY ", "BUSY ", "NOREPLICAS ", "MISCONF ",
	"ERR max number of clients",
}

// Replies that the next try would have too: an operator has to change something first. The
// rights that are missing are among them (see missing), and so is full memory, which a
// caller must not wait out with others.
var lastingReplies = []string{
	"WRONGTYPE ", "OOM ", "CROSSSLOT ", "DENIED ", "NOPROTO ",
	"ERR unknown ", "ERR unsupported ", "ERR wrong number of arguments", "ERR syntax error", "ERR user_script:",
	"ERR Error compiling script", "ERR Protocol error", "ERR DB index", "ERR SELECT is not allowed",
	"ERR eval/evalsha command keys must", "ERR bad lua script",
}

// IsReply reports whether an error is the server's answer. A client-side error
// of go-redis can be a redis.Error too; a server's error begins
// with a code in capitals.
func IsReply(err error) bool {
	var reply redis.Error
	if !errors.As(err, &reply) {
		return false
	}
	text := reply.Error()
	return text != "" && text[0] >= 'A' && text[0] <= 'Z'
}

// fateOf classifies the error of a command.
func fateOf(err error) fate {
	if IsReply(err) {
		var reply redis.Error
		errors.As(err, &reply)
		text := reply.Error()
		switch {
		case strings.HasPrefix(text, "NOSCRIPT "):
			return noScript
		case strings.HasPrefix(text, "MOVED "), strings.HasPrefix(text, "ASK "):
			return elsewhere
		}
		begins := func(prefix string) bool { return strings.HasPrefix(text, prefix) }
		switch {
		case slices.ContainsFunc(notReadyReplies, begins):
			return notReady
		case slices.ContainsFunc(lastingReplies, begins), missing(text) != "":
			return refused
		}
		return failed
	}
	var op *net.OpError
	switch {
	case errors.Is(err, driver.ErrConfig): // of introduce
		return refused
	case errors.As(err, &op) && op.Op == "dial", errors.Is(err, redis.ErrPoolTimeout),
		errors.Is(err, redis.ErrPoolExhausted), errors.Is(err, redis.ErrClosed), errors.Is(err, errShut):
		return unsent
	case errors.Is(err, errFull), errors.Is(err, errUnwanted):
		return notReady
	}
	return unknown
}

// ofSeveralSlots reports whether a server has refused a call because its keys are of
// different slots. The proxy of Alibaba Cloud uses other words
// (https://help.aliyun.com/document_detail/92942.html).
func ofSeveralSlots(err error) bool {
	text := err.Error()
	return strings.HasPrefix(text, "CROSSSLOT ") || strings.HasPrefix(text, "ERR eval/evalsha command keys must")
}

// Advice about an answer. Logs have the root cause of an error (observe.RootCause), so
// each advice is the last error in its chain.
var (
	errNode    = errors.New("this server is a node of a Cluster, which needs a redis.ClusterClient")
	errLiteral = errors.New("this proxy does not accept the library's scripts: set its parameter script_check_enable to 0, " +
		"or use the direct connection (docs/managed.md)")
)

var errNoMaster = errors.New("the sentinels know no master of this name (MasterName)")

// Wrap makes the error a caller gets of a command's.
func Wrap(err error) error {
	if err == nil {
		return nil
	}
	if fate := fateOf(err); fate == notReady || fate == failed {
		return fmt.Errorf("%w: %w", driver.ErrNotReady, err)
	}
	text := err.Error()
	switch right := missing(text); {
	case errors.Is(err, driver.ErrConfig): // of introduce: no later try succeeds
		return err
	case strings.HasPrefix(text, "WRONGTYPE "):
		return fmt.Errorf("%w: the key in Redis is not a lock of this library: %w", driver.ErrKeyOccupied, err)
	case right != "":
		return fmt.Errorf("%w: %w: %w", driver.ErrUnavailable, err,
			fmt.Errorf("the Redis user lacks a right: %s (docs/operations.md lists what is needed)", right))
	case errors.Is(err, redis.Nil) && strings.Contains(text, "all sentinels"): // each has answered
		return fmt.Errorf("%w: %w: %w", driver.ErrUnavailable, errNoMaster, err)
	case strings.HasPrefix(text, "ERR bad lua script for redis cluster"): // of the same proxy
		return fmt.Errorf("%w: %w: %w", driver.ErrUnavailable, err, errLiteral)
	case errors.Is(err, context.DeadlineExceeded):
		// A bound of ours, not the caller's deadline: do not let it look so.
		return fmt.Errorf("%w: %w", driver.ErrUnavailable, errors.New("no answer in time: "+text))
	}
	return fmt.Errorf("%w: %w", driver.ErrUnavailable, err)
}

// Answers of servers when a user lacks a right. For a command inside a script Redis 7.0
// names neither the command nor, as later ones do, the user; it goes on with the script
// and the line.
var (
	denial        = regexp.MustCompile(`NOPERM |The user executing the script|ACL failure in script: `)
	deniedCommand = regexp.MustCompile(`the '([^']+)' command`)
	deniedLine    = regexp.MustCompile(`script: ([0-9a-f]{40}), on @user_script:(\d+)`)
	calledCommand = regexp.MustCompile(`call_?\('(\w+)'`)
)

// missing says in words which command the server denied and which rule would allow
// it, or nothing if the error is no denial.
func missing(text string) string {
	command := deniedIn(text)
	switch {
	case strings.Contains(text, "NOAUTH "), strings.Contains(text, "WRONGPASS "),
		strings.Contains(text, "unauthenticated "): // as a request of many words is refused before AUTH
		return "AUTH does not succeed with the client's Username and Password; " +
			"the rule is ACL SETUSER <user> on ><password>, or requirepass"
	case !denial.MatchString(text):
		return ""
	case deniedCommand.MatchString(text): // what else the text holds is the user's name
		return command + "; the rule is +" + strings.ToLower(command)
	case strings.Contains(text, "channel"):
		return cmp.Or(command, "a command") + " on a lock's channel; the rule is &<prefix>:*"
	case strings.Contains(text, "access"):
		return cmp.Or(command, "a command") + " on a lock's key; the rule is ~<prefix>:*"
	case command == "":
		return "a command that a script calls"
	default:
		return command + "; the rule is +" + strings.ToLower(command)
	}
}

// deniedIn finds the command that was denied; nothing if the error does not tell,
// as in a call of a script for several locks.
func deniedIn(text string) string {
	if m := deniedCommand.FindStringSubmatch(text); m != nil {
		return strings.ToUpper(m[1])
	}
	m := deniedLine.FindStringSubmatch(text)
	if m == nil {
		return ""
	}
	for _, s := range scripts {
		lines := strings.Split(s.source, "\n")
		if n, _ := strconv.Atoi(m[2]); s.sha == m[1] && n > 0 && n <= len(lines) {
			if call := calledCommand.FindStringSubmatch(lines[n-1]); call != nil {
				return call[1]
			}
		}
	}
	return ""
}

// ErrReply is a reply that no script of the store makes.
var ErrReply = errors.New("interlock: a script's reply has an unknown form")

var errShut = errors.New("interlock: redisstore is closed")

// ErrNoAnswer is the outcome of a request after its caller has left.
var ErrNoAnswer = errors.New("no answer in time")
