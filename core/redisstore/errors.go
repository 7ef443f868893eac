package redisstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
)

// fate is what is known of a command that returned an error.
type fate int

const (
	refused   fate = iota // the server answered with an error: nothing was done
	unsent                // it never left: nothing was done
	unknown               // it may have been, or may yet be, executed
	notReady              // the server cannot serve the key at this moment
	noScript              // the server does not know the script
	elsewhere             // another node serves the key (Cluster)
)

// Replies of a server that will be able to serve the key in a while: it starts,
// fails over, or is moving the slot.
var notReadyReplies = []string{
	"LOADING ", "TRYAGAIN ", "CLUSTERDOWN ", "MASTERDOWN ", "READONLY ", "BUSY ", "NOREPLICAS ",
	"ERR max number of clients",
}

// isReply reports whether an error is the server's answer. A client-side error
// of go-redis can be a redis.Error too; one that comes from the server begins
// with a code in capitals.
func isReply(err error) bool {
	var reply redis.Error
	if !errors.As(err, &reply) {
		return false
	}
	text := reply.Error()
	return text != "" && text[0] >= 'A' && text[0] <= 'Z'
}

// fateOf classifies the error of a command.
func fateOf(err error) fate {
	if isReply(err) {
		var reply redis.Error
		errors.As(err, &reply)
		text := reply.Error()
		switch {
		case strings.HasPrefix(text, "NOSCRIPT "):
			return noScript
		case strings.HasPrefix(text, "MOVED "), strings.HasPrefix(text, "ASK "):
			return elsewhere
		}
		for _, prefix := range notReadyReplies {
			if strings.HasPrefix(text, prefix) {
				return notReady
			}
		}
		return refused
	}
	var op *net.OpError
	switch {
	case errors.As(err, &op) && op.Op == "dial", errors.Is(err, redis.ErrPoolTimeout),
		errors.Is(err, redis.ErrPoolExhausted), errors.Is(err, redis.ErrClosed), errors.Is(err, errShut):
		return unsent
	}
	return unknown
}

// wrap makes the error a caller gets of a command's.
func wrap(err error) error {
	if err == nil {
		return nil
	}
	if fateOf(err) == notReady {
		return fmt.Errorf("%w: %w", core.ErrNotReady, err)
	}
	text := err.Error()
	switch {
	case strings.HasPrefix(text, "WRONGTYPE "):
		return fmt.Errorf("%w: the key in Redis is not a lock of this library: %w", core.ErrUnavailable, err)
	case strings.HasPrefix(text, "NOPERM "):
		return fmt.Errorf("%w: the Redis user lacks a right (docs/operations.md lists what is needed): %w",
			core.ErrUnavailable, err)
	case errors.Is(err, context.DeadlineExceeded):
		// A bound of ours, not the caller's deadline: do not let it look so.
		return fmt.Errorf("%w: no answer in time: %s", core.ErrUnavailable, text)
	}
	return fmt.Errorf("%w: %w", core.ErrUnavailable, err)
}

var errShut = errors.New("interlock: redisstore is closed")
