package redisstore_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/reason"
	"github.com/interlock-go/interlock/internal/redistest"
)

// A client for one server announced releases by PUBLISH and one for a Cluster by
// SPUBLISH, also where both led to the same server: neither heard the other.
func TestClientsOfTwoKindsHearEachOthersReleases(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*testing.T) [2]redis.UniversalClient{
		"a Cluster of one shard": func(t *testing.T) [2]redis.UniversalClient {
			set := redistest.Cluster(t, 1, 0)
			return [2]redis.UniversalClient{set.Nodes()[0].Client(t), set.Client(t)}
		},
		// As NewFailoverClusterClient makes it, which leaves goroutines behind.
		"RouteRandomly with a server that is no node of a Cluster": func(t *testing.T) [2]redis.UniversalClient {
			set := redistest.Replicated(t, 1)
			random := redis.NewClusterClient(&redis.ClusterOptions{
				RouteRandomly: true, ReadOnly: true,
				ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
					nodes := []redis.ClusterNode{{Addr: set.Master.Addr()}, {Addr: set.Replicas[0].Addr()}}
					return []redis.ClusterSlot{{Start: 0, End: 16383, Nodes: nodes}}, nil
				},
			})
			t.Cleanup(func() { _ = random.Close() })
			return [2]redis.UniversalClient{set.Master.Client(t), random}
		},
	} {
		t.Run(name, func(t *testing.T) {
			clients := start(t)
			lockers := [2]*core.Locker{newLocker(t, clients[0]), newLocker(t, clients[1])}
			for i, l := range lockers {
				key := fmt.Sprint("k", i)
				lease := lock(t, l, key)
				other, granted := lockers[1-i], make(chan *core.Lease, 1)
				go func() {
					got, err := other.Lock(t.Context(), key, core.Wait(time.Minute))
					if err != nil {
						t.Error(err)
					}
					granted <- got
				}()
				awaitSubscription(t, clients[0])
				release(t, lease)
				begin := time.Now()
				got := <-granted
				if got == nil {
					continue
				}
				if late := time.Since(begin); late > 10*time.Second { // by asking alone it takes the 30 s of the lease
					t.Errorf("%T got the lock %v after %T gave it up", clients[1-i], late, clients[i])
				}
				release(t, got)
			}
		})
	}
}

// awaitSubscription waits until the server has a channel that a lock is waited on.
func awaitSubscription(t *testing.T, rdb redis.UniversalClient) {
	t.Helper()
	redistest.Eventually(t, 10*time.Second, func(ctx context.Context) error {
		plain, err := rdb.PubSubChannels(ctx, "interlock:*").Result()
		sharded, err2 := rdb.PubSubShardChannels(ctx, "interlock:*").Result()
		if len(plain)+len(sharded) == 0 {
			return fmt.Errorf("no subscription: %w", errors.Join(err, err2))
		}
		return nil
	})
}

// Redis below 7.0 granted locks, and then refused to renew them.
func TestARedisThatIsTooOldIsRefusedOnConnecting(t *testing.T) {
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
		t.Run(version, func(t *testing.T) {
			srv := pretend(t, answers)
			rdb := redis.NewClient(&redis.Options{Addr: srv.addr, DisableIdentity: true})
			t.Cleanup(func() { _ = rdb.Close() })
			l := newLocker(t, rdb)
			_, err := l.Lock(t.Context(), "k", core.Wait(5*time.Second))
			wantErr(t, err, core.ErrConfig)
			if err == nil || !strings.Contains(err.Error(), version) {
				t.Errorf("the error does not name %s: %v", version, err)
			}
			if why := core.ReasonOf(t.Context(), err); why != reason.Misconfigured {
				t.Errorf("the reason is %q", why)
			}
			if n := srv.count("EVAL"); n != 0 {
				t.Errorf("%d scripts were sent to it", n)
			}
		})
	}
}

// pretender is a server that answers the commands it knows, and OK to all others.
type pretender struct {
	addr string

	mu   sync.Mutex
	seen []string
}

// count says how many commands of such a beginning came.
func (p *pretender) count(prefix string) (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.seen {
		if strings.HasPrefix(c, prefix) {
			n++
		}
	}
	return n
}

// pretend starts a pretender; its answers go by a command and its first argument, or
// by the command alone.
func pretend(t *testing.T, answers map[string]string) *pretender {
	t.Helper()
	p := new(pretender)
	p.addr = listen(t, func(conn net.Conn) { p.serve(conn, answers) })
	return p
}

// listen starts a server that serves each connection on a goroutine of its own, and
// returns its address. It ends with the test.
func listen(tb testing.TB, serve func(net.Conn)) (addr string) {
	tb.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	var all sync.WaitGroup
	tb.Cleanup(all.Wait)
	tb.Cleanup(func() { _ = listener.Close() })
	all.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			all.Go(func() { serve(conn) })
		}
	})
	return listener.Addr().String()
}

func (p *pretender) serve(conn net.Conn, answers map[string]string) {
	defer func() { _ = conn.Close() }()
	in := bufio.NewReader(conn)
	for {
		args, err := readCommand(in)
		if err != nil {
			return
		}
		line := strings.ToUpper(strings.Join(args[:min(2, len(args))], " "))
		p.mu.Lock()
		p.seen = append(p.seen, line)
		p.mu.Unlock()
		answer, ok := answers[line]
		if !ok {
			answer, ok = answers[strings.ToUpper(args[0])]
		}
		if !ok {
			answer = "+OK\r\n"
		}
		if _, err := io.WriteString(conn, answer); err != nil {
			return
		}
	}
}
