package redisstore_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/internal/redistest"
)

// proxy stands before a server and accepts scripts as the proxy of Alibaba Cloud's
// clusters is documented to (https://help.aliyun.com/document_detail/92942.html). It
// shows what the store makes of such answers, not what that service does.
type proxy struct {
	addr    string
	checks  bool // script_check_enable, 1 by default there
	refused atomic.Int64
}

func startProxy(t *testing.T, srv *redistest.Server, checks bool) *proxy {
	t.Helper()
	p := &proxy{checks: checks}
	p.addr = listen(t, func(client net.Conn) {
		server, err := net.Dial("tcp", srv.Addr())
		if err != nil {
			_ = client.Close()
			return
		}
		var back sync.WaitGroup
		back.Go(func() {
			_, _ = io.Copy(client, server)
			_ = client.Close()
		})
		p.forward(server, client)
		_ = server.Close()
		back.Wait()
	})
	return p
}

// through makes a client connect to the proxy.
func (p *proxy) through(o *redis.Options) { o.Addr = p.addr }

// forward hands a client's commands on. In place of one that is refused the server is
// sent one that it answers with the error, so that the answers keep their order.
func (p *proxy) forward(server io.Writer, client io.Reader) {
	in := bufio.NewReader(client)
	for {
		cmd, err := readCommand(in)
		if err != nil {
			return
		}
		if why := p.refusal(cmd); why != "" {
			p.refused.Add(1)
			cmd = []string{"EVAL", "return redis.error_reply(ARGV[1])", "0", why}
		}
		var text strings.Builder
		_, _ = fmt.Fprintf(&text, "*%d\r\n", len(cmd))
		for _, arg := range cmd {
			_, _ = fmt.Fprintf(&text, "$%d\r\n%s\r\n", len(arg), arg)
		}
		if _, err := io.WriteString(server, text.String()); err != nil {
			return
		}
	}
}

// literalCall is a call as the proxy wants it.
var (
	anyCall     = regexp.MustCompile(`redis\.p?call\b`)
	literalCall = regexp.MustCompile(`redis\.p?call\(\s*'\w+'`)
)

// refusal is the error that a command is answered with; empty if it goes on.
func (p *proxy) refusal(cmd []string) string {
	source := ""
	switch name := strings.ToUpper(cmd[0]); {
	case name == "SCRIPT" && strings.EqualFold(cmd[1], "LOAD"):
		source = cmd[2]
	case name == "EVAL" || name == "EVALSHA":
		n, _ := strconv.Atoi(cmd[2])
		for _, key := range cmd[3:][:n] {
			if redistest.Slot(key) != redistest.Slot(cmd[3]) {
				return "ERR eval/evalsha command keys must be in same slot"
			}
		}
		if name == "EVAL" {
			source = cmd[1]
		}
	}
	if p.checks && len(anyCall.FindAllString(source, -1)) != len(literalCall.FindAllString(source, -1)) {
		return "ERR bad lua script for redis cluster, first parameter of redis.call/redis.pcall must be a single literal string."
	}
	return ""
}

func TestAProxyThatRefusesTheScriptsIsToldWithWhatToSet(t *testing.T) {
	srv := redistest.Start(t)
	l := newLocker(t, srv.Client(t, startProxy(t, srv, true).through))
	_, err := tryLock(t, l, "k")
	wantErr(t, err, core.ErrUnavailable)
	if err == nil || !strings.Contains(err.Error(), "script_check_enable") {
		t.Errorf("the error does not say what to set: %v", err)
	}
}

// The proxy has words of its own for CROSSSLOT. Calls that are refused cost a round
// trip each: after the first no more are shared.
func TestAProxyThatWantsOneSlotInACallIsSentNoSharedCallsAnyMore(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	p := startProxy(t, srv, false)
	l := newLocker(t, srv.Client(t, p.through), core.Watchdog(6*time.Second))
	takeTogether(t, srv, l)
	first := p.refused.Load()
	if first == 0 {
		t.Fatal("no call was shared: nothing is tested")
	}
	takeTogether(t, srv, l)
	if again := p.refused.Load() - first; again != 0 {
		t.Errorf("%d calls were refused after the first %d; want none", again, first)
	}
}

// lockTogether has n callers ask for the locks k0, k1 and so on while the server is
// paused, and returns what they got.
func lockTogether(t *testing.T, srv *redistest.Server, l *core.Locker, n int) (leases []*core.Lease, errs []error) {
	t.Helper()
	srv.Pause(t)
	leases, errs = make([]*core.Lease, n), make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { leases[i], errs[i] = l.Lock(t.Context(), fmt.Sprint("k", i), core.Wait(10*time.Second)) })
	}
	redistest.Eventually(t, 10*time.Second, func(context.Context) error {
		if asked := len(l.Held()); asked != n {
			return fmt.Errorf("%d of %d have asked", asked, n)
		}
		return nil
	})
	srv.Resume(t)
	all.Wait()
	return leases, errs
}

// takeTogether has many callers ask for locks of different slots at once, waits until
// the watchdog has renewed the locks, and releases them.
func takeTogether(t *testing.T, srv *redistest.Server, l *core.Locker) {
	t.Helper()
	release(t, lock(t, l, "warm"))
	const n = 50
	leases, errs := lockTogether(t, srv, l, n)
	for i, err := range errs {
		if err != nil {
			t.Fatalf("k%d: %v", i, err)
		}
	}
	awaitRenewal(t, leases)
	var all sync.WaitGroup
	for _, lease := range leases {
		all.Go(func() {
			begin := time.Now()
			if err := lease.Release(context.Background()); err != nil && !stalled(err, begin) {
				t.Errorf("Release(%q): %v", lease.Key(), err)
			}
		})
	}
	all.Wait()
}
