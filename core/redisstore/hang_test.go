package redisstore_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/internal/redistest"
)

// sentinel is a server that answers as a sentinel does, until it hangs.
type sentinel struct {
	addr   string
	master *atomic.Pointer[redistest.Server]
	hangs  atomic.Bool
	heard  atomic.Bool // a client listens to it: it is the one that client asks
}

func newSentinel(tb testing.TB, master *atomic.Pointer[redistest.Server]) *sentinel {
	tb.Helper()
	s := &sentinel{master: master}
	s.addr = listen(tb, s.serve)
	return s
}

func (s *sentinel) serve(cn net.Conn) {
	defer cn.Close()
	in := bufio.NewReader(cn)
	for {
		args, err := readCommand(in)
		if err != nil {
			return
		}
		if s.hangs.Load() {
			continue
		}
		answer := "+OK\r\n"
		switch line := strings.ToLower(strings.Join(args, " ")); {
		case strings.HasPrefix(line, "hello"):
			answer = "-ERR unknown command\r\n"
		case strings.HasPrefix(line, "sentinel get-master-addr-by-name"):
			host, port, _ := net.SplitHostPort(s.master.Load().Addr())
			answer = fmt.Sprintf("*2\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n", len(host), host, len(port), port)
		case strings.HasPrefix(line, "sentinel sentinels"), strings.HasPrefix(line, "sentinel replicas"):
			answer = "*0\r\n"
		case strings.HasPrefix(line, "subscribe"):
			s.heard.Store(true)
			answer = ""
			for i, channel := range args[1:] {
				answer += fmt.Sprintf("*3\r\n$9\r\nsubscribe\r\n$%d\r\n%s\r\n:%d\r\n", len(channel), channel, i+1)
			}
		case strings.HasPrefix(line, "ping"):
			answer = "+PONG\r\n"
		}
		if _, err := io.WriteString(cn, answer); err != nil {
			return
		}
	}
}

// A client asks one sentinel until that fails. go-redis tries one that hangs several
// times, for its ReadTimeout each: a failover was noticed 21 s late.
func TestAFailoverIsNoticedWhileASentinelHangs(t *testing.T) {
	t.Parallel()
	before, after := redistest.Start(t), redistest.Start(t)
	var master atomic.Pointer[redistest.Server]
	master.Store(before)
	sentinels := []*sentinel{newSentinel(t, &master), newSentinel(t, &master), newSentinel(t, &master)}
	rdb := redis.NewFailoverClient(&redis.FailoverOptions{
		MasterName: "m", SentinelAddrs: []string{sentinels[0].addr, sentinels[1].addr, sentinels[2].addr}, ClientName: "store",
		ReadTimeout: 5 * time.Second,
	})
	defer rdb.Close()
	l := newLockerWithin(t, rdb, time.Second) // the default, which bounds how late it is noticed
	release(t, lock(t, l, "warm"))
	redistest.Eventually(t, 10*time.Second, func(context.Context) error {
		for _, s := range sentinels {
			if s.heard.Load() {
				s.hangs.Store(true)
				return nil
			}
		}
		return fmt.Errorf("the client listens to no sentinel")
	})
	old := before.Client(t)
	master.Store(after)
	begin := time.Now()
	redistest.Eventually(t, 60*time.Second, func(ctx context.Context) error {
		list, err := old.ClientList(ctx).Result()
		if err == nil && strings.Contains(list, "name=store") {
			err = fmt.Errorf("connections to the former master: %s", list)
		}
		return err
	})
	took := time.Since(begin)
	t.Logf("no connection to the former master after %v", took)
	if took > 14*time.Second {
		t.Errorf("the failover was noticed after %v, want 2s and once the ReadTimeout", took)
	}
	release(t, lock(t, l, "k"))
}
