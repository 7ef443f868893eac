package redisstore_test

import (
	"errors"
	"math"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/reason"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/internal/logtest"
)

func TestConstructorRefusesWhatCannotKeepALock(t *testing.T) {
	t.Parallel()
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}})
	defer ring.Close()
	var nilClient *redis.Client
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer rdb.Close()
	for _, c := range []struct {
		name string
		rdb  redis.UniversalClient
		opts []redisstore.Option
		says string
	}{
		{"nil", nil, nil, "nil"},
		{"typed nil", nilClient, nil, "nil"},
		{"ring", ring, nil, "Ring"},
		{"prefix with brace", rdb, []redisstore.Option{redisstore.Prefix("a{b")}, "braces"},
		{"empty prefix", rdb, []redisstore.Option{redisstore.Prefix("")}, "empty"},
		{"timeout", rdb, []redisstore.Option{redisstore.Timeout(0)}, "at least 10ms"},
		{"connections", rdb, []redisstore.Option{redisstore.Connections(0)}, "at least 1"},
		{"endless timeout", rdb, []redisstore.Option{redisstore.Timeout(math.MaxInt64)}, "at most"},
		{"endless time for replicas", rdb, []redisstore.Option{redisstore.Replicas(1, math.MaxInt64)}, "at most"},
		{"no replicas", rdb, []redisstore.Option{redisstore.Replicas(0, time.Second)}, "at least 1 replica"},
		{"no time for replicas", rdb, []redisstore.Option{redisstore.Replicas(1, 0)}, "at least 1 replica"},
		{"renewals without replicas", rdb, []redisstore.Option{redisstore.ReplicatedRenewals()}, "without Replicas"},
	} {
		_, err := redisstore.New(c.rdb, c.opts...)
		if !errors.Is(err, core.ErrConfig) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v; want ErrConfig that says %q", c.name, err, c.says)
		}
	}
}

// Users stop to read warnings that say nothing about them.
func TestDefaultClientIsWarnedAboutNothingAndABadOneOnce(t *testing.T) {
	t.Parallel()
	addrs := []string{"127.0.0.1:1"}
	for name, c := range map[string]struct {
		client redis.UniversalClient
		want   []string
	}{
		"default":       {redis.NewUniversalClient(&redis.UniversalOptions{Addrs: addrs}), nil},
		"cluster":       {redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs}), nil},
		"long":          {redis.NewClient(&redis.Options{Addr: addrs[0], ReadTimeout: time.Minute}), []string{"ReadTimeout"}},
		"endless":       {redis.NewClient(&redis.Options{Addr: addrs[0], ReadTimeout: -1}), []string{"ReadTimeout"}},
		"replica reads": {redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs, ReadOnly: true, ReadTimeout: time.Minute}), []string{"ReadOnly", "ReadTimeout"}},
	} {
		var logged logtest.Log
		synctest.Test(t, func(t *testing.T) {
			for range 3 {
				store, err := redisstore.New(c.client, redisstore.Logger(logged.Logger()))
				if err != nil {
					t.Fatal(err)
				}
				defer store.Close()
			}
			synctest.Wait()
		})
		defer c.client.Close()
		text := logged.String()
		if lines := strings.Count(text, "\n"); lines != min(len(c.want), 1) {
			t.Errorf("%s: %d lines: %s", name, lines, text)
		}
		for _, want := range c.want {
			if !strings.Contains(text, want) {
				t.Errorf("%s: no %s in %s", name, want, text)
			}
		}
	}
}

// storeAt makes a store on the server at an address.
func storeAt(t *testing.T, addr string) *redisstore.Store {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: addr, DisableIdentity: true})
	t.Cleanup(func() { _ = rdb.Close() })
	store, err := redisstore.New(rdb, redisstore.Timeout(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	return store
}

// scripts answers the commands of a connection: a call of a script as run says, what else the
// store sends as a server does.
func scripts(run func() string) func(cmd []string) string {
	return func(cmd []string) string {
		switch strings.ToUpper(cmd[0]) {
		case "HELLO":
			return "-ERR unknown command `hello`\r\n"
		case "INFO":
			return "$23\r\nredis_version:7.2.0\r\na:\r\n"
		case "EVALSHA":
			return run()
		}
		return "+OK\r\n"
	}
}

func TestAServerThatIsNotReadySaysSo(t *testing.T) {
	t.Parallel()
	for _, word := range []string{"LOADING", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", "READONLY", "BUSY", "NOREPLICAS", "MISCONF"} {
		addr := listen(t, func(conn net.Conn) {
			answer(conn, scripts(func() string { return "-" + word + " for now\r\n" }))
		})
		_, err := storeAt(t, addr).Acquire(t.Context(), driver.AcquireRequest{Key: "k", Owner: "a:1", TTL: time.Minute})
		if !errors.Is(err, driver.ErrNotReady) || !strings.Contains(err.Error(), word+" for now") {
			t.Errorf("%s: %v; want ErrNotReady, with what the server says", word, err)
		}
	}
}

// A server, or a proxy, has errors that the store cannot know. A request is sent again after
// such an error, and was perhaps executed.
func TestAnErrorThatIsNotKnownIsNoReasonToGiveUp(t *testing.T) {
	t.Parallel()
	for failures, granted := range map[int64]bool{1: true, 2: true, 1000: false} {
		var asked atomic.Int64
		addr := listen(t, func(conn net.Conn) {
			answer(conn, scripts(func() string {
				if asked.Add(1) <= failures {
					return "-ERR internal error\r\n"
				}
				return ":1700000000000000\r\n"
			}))
		})
		s := storeAt(t, addr)
		rep, err := s.Acquire(t.Context(), driver.AcquireRequest{Key: "k", Owner: "a:1", TTL: time.Minute})
		if granted {
			if err != nil || !rep.Granted {
				t.Errorf("after %d errors: %+v, %v", failures, rep, err)
			}
			continue
		}
		if !errors.Is(err, driver.ErrNotReady) || !rep.Ambiguous || !strings.Contains(err.Error(), "internal error") {
			t.Errorf("an error that stays: %+v, %v; want ErrNotReady, with what the server says", rep, err)
		}
	}
}

// An error that the next try would also get is returned at once.
func TestAnErrorThatLastsIsReturnedAtOnce(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"NOPERM this user has no permissions to run the 'evalsha' command", "NOAUTH Authentication required.",
		"WRONGPASS invalid username-password pair or user is disabled.", "WRONGTYPE Operation against a key",
		"OOM command not allowed when used memory > 'maxmemory'.", "ERR unknown command 'evalsha'", "ERR unsupported command 'evalsha'",
		"ERR The user executing the script can't run this command or subcommand script: 12, on @user_script:3.",
		"ERR user_script:3: attempt to index a nil value", "ERR wrong number of arguments for 'evalsha' command",
		"DENIED Redis is running in protected mode", "CROSSSLOT Keys in request don't hash to the same slot",
	} {
		var asked atomic.Int64
		addr := listen(t, func(conn net.Conn) {
			answer(conn, scripts(func() string {
				asked.Add(1)
				return "-" + text + "\r\n"
			}))
		})
		_, err := storeAt(t, addr).Acquire(t.Context(), driver.AcquireRequest{Key: "k", Owner: "a:1", TTL: time.Minute})
		if n := asked.Load(); err == nil || errors.Is(err, driver.ErrNotReady) || n != 1 {
			t.Errorf("%s: %v, after %d tries; want an error other than ErrNotReady, after one", text, err, n)
		}
	}
}

// Redis below 7.0 granted locks, and then refused to renew them.
func TestARedisThatIsTooOldIsRefusedOnConnecting(t *testing.T) {
	t.Parallel()
	for version, answers := range map[string]map[string]string{
		"6.2.14": {
			"HELLO":   "*4\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$6\r\n6.2.14\r\n",
			"HELLO 3": "%2\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$6\r\n6.2.14\r\n",
		},
		"6.0.16": {
			"HELLO":       "-ERR wrong number of arguments for 'hello' command\r\n",
			"INFO SERVER": "$39\r\n# Server\r\nredis_version:6.0.16\r\nhz:10\r\n\r\n",
		},
		"5.0.14": {
			"HELLO":       "-ERR unknown command `hello`\r\n",
			"HELLO 3":     "-ERR unknown command `hello`\r\n",
			"INFO SERVER": "$39\r\n# Server\r\nredis_version:5.0.14\r\nhz:10\r\n\r\n",
		},
	} {
		var scripts atomic.Int64
		addr := listen(t, func(conn net.Conn) {
			answer(conn, func(cmd []string) string {
				name := strings.ToUpper(cmd[0])
				if strings.HasPrefix(name, "EVAL") {
					scripts.Add(1)
				}
				// By a command and its first argument, or by the command alone.
				for _, line := range []string{strings.ToUpper(strings.Join(cmd[:min(2, len(cmd))], " ")), name} {
					if text, ok := answers[line]; ok {
						return text
					}
				}
				return "+OK\r\n"
			})
		})
		_, err := storeAt(t, addr).Acquire(t.Context(), driver.AcquireRequest{Key: "k", Owner: "a:1", TTL: time.Minute})
		if !errors.Is(err, core.ErrConfig) || errors.Is(err, core.ErrUnavailable) || !strings.Contains(err.Error(), version) {
			t.Errorf("%s: %v; want ErrConfig that names the version, and not ErrUnavailable", version, err)
		}
		if why := core.ReasonOf(t.Context(), err); why != reason.Misconfigured {
			t.Errorf("%s: the reason is %q", version, why)
		}
		if n := scripts.Load(); n != 0 {
			t.Errorf("%s: %d scripts were sent to it", version, n)
		}
	}
}

// Should replies ever get out of step, none of a lock's script may be taken for the grant
// of a claim.
func TestNoScriptOfALockSaysWhatTheScriptOfARecordDoes(t *testing.T) {
	t.Parallel()
	words := func(pattern string) map[string]bool {
		t.Helper()
		found := map[string]bool{}
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatal(pattern, err)
		}
		for _, file := range files {
			source, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, line := range regexp.MustCompile(`return [{]?'\w+`).FindAllString(string(source), -1) {
				found[line[strings.Index(line, "'"):]] = true
			}
		}
		return found
	}
	locks, records := words("../internal/rediswire/lua/*.lua"), words("lua/*.lua")
	if !records["'claim"] || !records["'commit"] {
		t.Fatalf("the words of records are %v: the test has gone blind", records)
	}
	for word := range records {
		if locks[word] {
			t.Errorf("both say %s", word)
		}
	}
}
