//go:build integration

package redisstore_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/internal/redistest"
)

// proxy stands before a server and accepts scripts as the proxy of Alibaba Cloud's
// clusters is documented to (https://help.aliyun.com/document_detail/92942.html). It
// shows the reaction of the store to such answers, not the behaviour of that service.
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

// forward hands a client's commands on. In place of a command that is refused the server
// gets a command that it answers with the error, so that the answers keep their order.
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

func TestTheErrorOfAProxyThatRefusesTheScriptsNamesItsSettings(t *testing.T) {
	t.Parallel()
	w := alone(t)
	s := w.store(startProxy(t, w.Server, true).through)
	_, err := s.Acquire(t.Context(), w.held("k", "a:1"))
	wantErr(t, err, core.ErrUnavailable)
	if err == nil || !strings.Contains(err.Error(), "script_check_enable") {
		t.Errorf("the error does not say what to set: %v", err)
	}
}

// The proxy has other words for CROSSSLOT. Calls that are refused cost a round trip
// each: the probes of the first connections are refused, and no call is shared.
func TestAProxyThatWantsOneSlotInACallIsSentNoSharedCallsAnyMore(t *testing.T) {
	t.Parallel()
	w := alone(t)
	p := startProxy(t, w.Server, false)
	s := w.store(p.through)
	w.take(s, w.held("warm", "a:1"))
	const n = 50
	var refused [2]int64
	for round := range refused {
		replies, errs := w.together(s, n)
		var batch []driver.Renewal
		for i, rep := range replies {
			if errs[i] != nil || !rep.Granted {
				t.Fatalf("k%d: %+v, %v", i, rep, errs[i])
			}
			batch = append(batch, driver.Renewal{Key: fmt.Sprint("k", i), Owner: fmt.Sprint("owner:", i), TTL: w.Holds()})
		}
		w.hold(s, batch)
		refused[round] = p.refused.Load()
	}
	if refused[0] == 0 || refused[1] != refused[0] {
		t.Errorf("%d calls were refused in the first round and %d in both; want the probes, and no more", refused[0], refused[1])
	}
}
