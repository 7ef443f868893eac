package rediswire

import (
	"context"
	"crypto/fips140"
	"crypto/sha1" //nolint:gosec // the name of the script at Redis (EVALSHA)
	"embed"
	"encoding/hex"
	"regexp"
	"strings"

	"github.com/redis/go-redis/v9"
)

// Script is a Lua script and its name. redis.Script falls back from EVALSHA to
// EVAL outside pipelines only, and so is of no use here.
type Script struct {
	source string
	sha    string
	// The first element of its answer to several requests in one call; empty: it takes one.
	several string
}

// scripts are all that there are: an error can name any of them.
var scripts []*Script

// NewScript makes a script. Only variables of packages are made with it: it is not
// safe for concurrent use.
func NewScript(source string) *Script {
	s := &Script{source: source}
	fips140.WithoutEnforcement(func() { // a name protects nothing
		sum := sha1.Sum([]byte(source)) //nolint:gosec // see the import
		s.sha = hex.EncodeToString(sum[:])
	})
	scripts = append(scripts, s)
	return s
}

// parts are the files that scripts include.
//
//go:embed lua/*.lua
var parts embed.FS

// include is a line of a script that is replaced by another file: Lua has no constant
// functions, and makes each anew in each run of a script.
var include = regexp.MustCompile(`(?m)^\t*-- include (\w+\.lua)\n`)

// complete returns the source of a script with the files that it includes, and with a file
// after it. The comments at the beginning of the files are not sent.
func complete(source, end string) string {
	code := func(file string) string {
		text, err := parts.ReadFile("lua/" + file)
		if err != nil {
			panic(err) // at the start of every process, or never
		}
		_, code, _ := strings.Cut(string(text), "\n\n")
		return code
	}
	for include.MatchString(source) {
		source = include.ReplaceAllStringFunc(source, func(line string) string {
			return code(include.FindStringSubmatch(line)[1])
		})
	}
	if end != "" {
		source += code(end)
	}
	return source
}

// forSeveral makes a script that takes several requests in one call.
func forSeveral(name, source string) *Script {
	s := NewScript(complete(source, "several.lua"))
	s.several = name
	return s
}

// Sources returns the scripts for locks by their names, for the test that holds them against the
// rules of package keystate.
func Sources() map[string]string {
	return map[string]string{
		"acquire": acquireScript.source, "line": lineScript.source, "renew": renewScript.source, "release": releaseScript.source,
		"decline": declineScript.source, "enter": enterScript.source, "stay": stayScript.source, "leave": leaveScript.source,
		"move": moveScript.source,
	}
}

// ofSubscription marks a context: go-redis connects for a subscription.
type ofSubscription struct{}

// loading makes scripts known to the server of a new connection, so
// that EVALSHA finds them, after a restart or a failover too. An error that the
// server answered is not one: a request that finds its script missing sends it
// along. Any other means that replies may still come, and would be taken for
// answers to the next commands: such a connection must not be used. The connection is
// probed in the same round trip; keys is nil for a Cluster. A connection of a subscription
// calls no script, and gets none.
func loading(all []*Script, keys *keyspace) setUp {
	return func(ctx context.Context, cn *redis.Conn) error {
		if ctx.Value(ofSubscription{}) != nil {
			return nil
		}
		probe := keys.probe()
		_, err := cn.Pipelined(ctx, func(p redis.Pipeliner) error {
			for _, s := range all {
				p.ScriptLoad(ctx, s.source)
			}
			probe.add(ctx, p)
			return nil
		})
		if err != nil && !IsReply(err) {
			return err
		}
		return keys.learn(probe)
	}
}
