package zkstore

import (
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/interlock-go/interlock/core/casstore"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/observe"
)

// The client waits for a second when the host list says that it has tried all hosts: during
// an election it must not.
func TestTheClientIsNotSentToSleepByAnElection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hosts{servers: []string{"a", "b", "c"}, greeting: firstGreeting}
		for range 2 {
			begin, slept := time.Now(), time.Duration(0)
			for slept == 0 {
				if _, again := h.Next(); again {
					slept = time.Since(begin)
				}
			}
			if slept < 2900*time.Millisecond || slept > 3200*time.Millisecond {
				t.Errorf("the client drops its requests after %v", slept)
			}
			h.Connected()
			time.Sleep(time.Hour)
		}
	})
}

// A member without a leader closes a connection at once. That says nothing about how long a
// member takes to greet.
func TestOnlyMembersThatHangGetMoreTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var member net.Conn
		h := &hosts{servers: []string{"a"}, greeting: firstGreeting, trouble: map[string]string{}, dial: func(string, string, time.Duration) (net.Conn, error) {
			var client net.Conn
			client, member = net.Pipe()
			return client, nil
		}}
		greet := func(meet func()) (time.Duration, error) {
			t.Helper()
			conn, err := h.connect("tcp", "a", time.Second)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if err := conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
				t.Fatal(err)
			}
			begin := time.Now()
			go meet()
			_, err = conn.Read(make([]byte, 1))
			return time.Since(begin), err
		}
		for range 10 {
			if _, err := greet(func() { _ = member.Close() }); !errors.Is(err, io.EOF) {
				t.Errorf("a member that closes: %v", err)
			}
		}
		for _, want := range []time.Duration{firstGreeting, 2 * firstGreeting, 4 * firstGreeting} {
			if took, err := greet(func() {}); took != want || !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("a member that hangs: %v after %v; want after %v", err, took, want)
			}
		}
		if _, err := greet(func() { _, _ = member.Write([]byte("x")) }); err != nil {
			t.Errorf("a member that greets: %v", err)
		}
	})
}

func TestConnectRefusesAnAddressWithAPath(t *testing.T) {
	for _, server := range []string{"zk-1:2181/locks", "zk-1/locks", "zk-1:2181,zk-2:2181", "zk-1:", ":2181"} {
		if conn, err := Connect([]string{"zk-0:2181", server}, nil); !errors.Is(err, driver.ErrConfig) || !strings.Contains(err.Error(), server) {
			t.Errorf("%q: %v; want ErrConfig, and the server in its text", server, err)
			if err == nil {
				conn.Close()
			}
		}
	}
}

// Without a session nothing is sent. The error says why there is none.
func TestTheErrorSaysWhyThereIsNoSession(t *testing.T) {
	closes := func(net.Conn) {}
	hangs := func(conn net.Conn) { _, _ = conn.Read(make([]byte, 1000)); _, _ = conn.Read(make([]byte, 1)) }
	for name, c := range map[string]struct {
		serve func(net.Conn) // nil: nobody listens
		host  string
		dial  zk.Dialer
		want  string
	}{
		"nobody listens":      {nil, "127.0.0.1", nil, "connection refused"},
		"an unknown name":     {nil, "no.such.invalid", nil, "no.such.invalid"},
		"it closes":           {closes, "127.0.0.1", nil, "closes it before it greets"},
		"it hangs":            {hangs, "127.0.0.1", nil, "does not greet"},
		"TLS to a plain port": {closes, "127.0.0.1", secure, "EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			if c.serve == nil {
				l.Close()
			}
			go func() {
				for {
					conn, err := l.Accept()
					if err != nil {
						return
					}
					go func() {
						defer conn.Close()
						c.serve(conn)
					}()
				}
			}()
			server := net.JoinHostPort(c.host, strconv.Itoa(l.Addr().(*net.TCPAddr).Port))
			conn, err := Connect([]string{server}, c.dial)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			store, err := New(conn, casstore.Logger(slog.New(slog.DiscardHandler)))
			if err != nil {
				t.Fatal(err)
			}
			defer store.Close()
			// The member is tried in the background: more than once, on a slow machine.
			for end := time.Now().Add(time.Minute); ; {
				ask := driver.AcquireRequest{Key: "k", Owner: "o", TTL: time.Second, Deadline: time.Now().Add(time.Second), Late: func(driver.Reply, error) {}}
				_, err := store.Acquire(t.Context(), ask)
				text := observe.RootCause(err).Error()
				if strings.Contains(text, server) && strings.Contains(text, c.want) {
					return
				}
				if time.Now().After(end) {
					t.Fatalf("%v; want that it names %s, and %q", err, server, c.want)
				}
			}
		})
	}
}

// secure makes a connection with TLS.
func secure(network, address string, timeout time.Duration) (net.Conn, error) {
	return tls.DialWithDialer(&net.Dialer{Timeout: timeout}, network, address, &tls.Config{ServerName: "zk", MinVersion: tls.VersionTLS12})
}
