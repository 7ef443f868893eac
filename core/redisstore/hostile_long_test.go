//go:build long

package redisstore_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/internal/redistest"
)

// The server's next action after sending its bytes.
const (
	thenServe   = iota // the next call gets the same again
	thenClose          // it closes the connection
	thenSilence        // nothing more comes over the connection
	thenRepeat         // the same again and again, asked or not
	fromStart          // the set-up of the connection is answered like that too
	inHalves           // in two writes
	ends
)

// misdeed is what a hostile server does.
type misdeed struct {
	reply []byte
	then  int
	resp3 bool
}

// hostile is a server that sets connections up and then sends any answer.
type hostile struct {
	ln   net.Listener
	work sync.WaitGroup

	mu    sync.Mutex
	deed  misdeed
	conns map[net.Conn]struct{}
	made  int
}

func newHostile(tb testing.TB) *hostile {
	// Not TCP: a fuzzer would use up the ports.
	dir, err := os.MkdirTemp("", "hostile-") //nolint:usetesting // the path of a socket must be short
	if err != nil {
		tb.Fatal(err)
	}
	redis.SetLogger(silence{}) // it names the fault of each reply
	h := &hostile{conns: map[net.Conn]struct{}{}}
	if h.ln, err = net.Listen("unix", filepath.Join(dir, "s")); err != nil {
		tb.Fatal(err)
	}
	h.work.Go(func() {
		for {
			cn, err := h.ln.Accept()
			if err != nil {
				return
			}
			h.mu.Lock()
			h.conns[cn] = struct{}{}
			h.made++
			deed, first := h.deed, h.made == 1
			h.mu.Unlock()
			h.work.Go(func() { h.serve(cn, deed, first) })
		}
	})
	tb.Cleanup(func() {
		_ = h.ln.Close()
		h.drop()
		h.work.Wait()
		_ = os.RemoveAll(dir)
	})
	return h
}

type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}

// set says what happens on connections that are made from now on.
func (h *hostile) set(d misdeed) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.deed, h.made = d, 0
}

// drop closes all connections.
func (h *hostile) drop() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for cn := range h.conns {
		_ = cn.Close()
	}
}

func (h *hostile) client(tb testing.TB, protocol int) *redis.Client {
	rdb := redis.NewClient(&redis.Options{
		Network: "unix", Addr: h.ln.Addr().String(), Protocol: protocol,
		ContextTimeoutEnabled: true, MaxRetries: -1, ReadTimeout: time.Second, // nothing to warn about
	})
	tb.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// most is how many bytes are repeated at most.
const most = 1 << 16

func (h *hostile) serve(cn net.Conn, d misdeed, first bool) {
	defer func() {
		_ = cn.Close()
		h.mu.Lock()
		delete(h.conns, cn)
		h.mu.Unlock()
	}()
	r := bufio.NewReader(cn)
	for {
		cmd, err := readCommand(r)
		if err != nil {
			return
		}
		answer := d.reply
		switch name := strings.ToLower(cmd[0]); {
		case d.then == fromStart:
		case name == "eval" && strings.Contains(cmd[3], ":probe:"): // of the set-up
			answer = []byte(":1\r\n")
		case name == "eval", name == "evalsha":
		case name == "subscribe":
			h.listen(cn, cmd[1:], d, first)
			continue
		case name == "hello" && d.resp3:
			answer = []byte("%1\r\n+proto\r\n:3\r\n")
		case name == "hello":
			answer = []byte("-ERR unknown command\r\n")
		case name == "hmget": // a stored response, which comes after a claim
			answer = []byte("*2\r\n$1\r\nt\r\n$1\r\nr\r\n")
		case name == "info":
			answer = []byte("$12\r\nrun_id:abc\r\n\r\n")
		case name == "ping":
			answer = []byte("+PONG\r\n")
		default:
			answer = []byte("+OK\r\n")
		}
		if d.then == inHalves {
			_, _ = cn.Write(answer[:len(answer)/2])
			answer = answer[len(answer)/2:]
		}
		if _, err := cn.Write(answer); err != nil {
			return
		}
		if !bytes.Equal(answer, d.reply) {
			continue
		}
		switch d.then {
		case thenClose:
			return
		case thenSilence:
			_, _ = io.Copy(io.Discard, r)
			return
		case thenRepeat:
			for sent := 0; sent < most && len(answer) > 0; sent += len(answer) {
				if _, err := cn.Write(answer); err != nil {
					return
				}
			}
		}
	}
}

// listen answers a subscription: on the first connection with the given bytes, and
// then, as on all others, correctly.
func (h *hostile) listen(cn net.Conn, channels []string, d misdeed, first bool) {
	kind := "*"
	if d.resp3 {
		kind = ">"
	}
	if first {
		_, _ = cn.Write(d.reply)
	}
	for _, ch := range channels {
		_, _ = fmt.Fprintf(cn, "%s3\r\n$9\r\nsubscribe\r\n$%d\r\n%s\r\n:1\r\n", kind, len(ch), ch)
		payload := "over"
		if strings.Contains(ch, ":wanted:") {
			payload = ":over interlock:{k}" // a call
		}
		_, _ = fmt.Fprintf(cn, "%s3\r\n$7\r\nmessage\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n", kind, len(ch), ch, len(payload), payload)
	}
	if first {
		_ = cn.(*net.UnixConn).CloseWrite() // the client does not wait for swallowed bytes
	}
}

// wantNothingLeft closes the opened clients and stores, and waits until no more
// goroutines run than before.
func (h *hostile) wantNothingLeft(t *testing.T, before int, opened ...io.Closer) {
	t.Helper()
	for _, c := range opened {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	h.drop()
	redistest.Eventually(t, 10*time.Second, func(context.Context) error {
		if n := runtime.NumGoroutine(); n > before {
			return fmt.Errorf("%d goroutines, there were %d", n, before)
		}
		return nil
	})
}
