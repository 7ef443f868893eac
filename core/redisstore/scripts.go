package redisstore

import (
	"context"
	"crypto/sha1" //nolint:gosec // the name by which Redis knows a script (EVALSHA)
	_ "embed"
	"encoding/hex"

	"github.com/redis/go-redis/v9"
)

//go:embed lua/acquire.lua
var acquireSource string

//go:embed lua/renew.lua
var renewSource string

//go:embed lua/release.lua
var releaseSource string

var (
	acquireScript = newScript(acquireSource).forSeveral("acquire")
	renewScript   = newScript(renewSource).forSeveral("renew")
	releaseScript = newScript(releaseSource).forSeveral("release")
)

// script is a Lua script and its name. redis.Script falls back from EVALSHA to
// EVAL outside pipelines only, and so is of no use here.
type script struct {
	source string
	sha    string
	// The name with which it begins what it answers to several requests in one call;
	// empty: it takes one.
	several string
}

func newScript(source string) *script {
	sum := sha1.Sum([]byte(source)) //nolint:gosec // see the import
	return &script{source: source, sha: hex.EncodeToString(sum[:])}
}

// forSeveral marks a script that takes several requests in one call.
func (s *script) forSeveral(name string) *script {
	s.several = name
	return s
}

// loadScripts makes the scripts known to the server of a new connection, so
// that EVALSHA finds them, after a restart or a failover too. An error that the
// server answered is not one: a request that finds its script missing sends it
// along. Any other means that replies may still come, and would be taken for
// those of the next commands: such a connection must not be used.
func loadScripts(ctx context.Context, cn *redis.Conn) error {
	_, err := cn.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, s := range []*script{
			acquireScript, renewScript, releaseScript,
			claimScript, extendScript, markScript, commitScript, abandonScript,
		} {
			p.ScriptLoad(ctx, s.source)
		}
		return nil
	})
	if isReply(err) {
		return nil
	}
	return err
}

// command is a redis command that go-redis must not send a second time by
// itself. All commands of the store are such: in a pipeline that mixes both
// kinds go-redis would send each kind alone.
type command struct{ *redis.Cmd }

// NoRetry implements redis.Cmder.
func (command) NoRetry() bool { return true }

// callArgs is how many arguments of a command come before a script's own: its
// name, the script and the number of keys.
const callArgs = 3

// evalWith makes the command that runs a script; the first callArgs of args are
// left for it.
func (s *script) evalWith(ctx context.Context, full bool, nkeys int, args []any) command {
	args[0], args[1], args[2] = "evalsha", &s.sha, nkeys
	if full {
		args[0], args[1] = "eval", &s.source
	}
	return command{redis.NewCmd(ctx, args...)}
}
