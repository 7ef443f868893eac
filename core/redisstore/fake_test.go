package redisstore_test

import (
	"bufio"
	"errors"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// listen starts a server that serves each connection on a separate goroutine, and
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

// answer reads the commands of a connection and writes what reply returns for each, until
// the connection fails.
func answer(conn net.Conn, reply func(cmd []string) string) {
	defer conn.Close()
	in := bufio.NewReader(conn)
	for {
		cmd, err := readCommand(in)
		if err != nil {
			return
		}
		if _, err := io.WriteString(conn, reply(cmd)); err != nil {
			return
		}
	}
}

// readCommand reads an array of strings, as clients send them.
func readCommand(r *bufio.Reader) (cmd []string, err error) {
	number := func(kind string) int {
		line, e := r.ReadString('\n')
		n, e2 := strconv.Atoi(strings.TrimPrefix(strings.TrimSpace(line), kind))
		err = errors.Join(err, e, e2)
		return n
	}
	for range number("*") {
		b := make([]byte, number("$")+2)
		if err != nil {
			return nil, err
		}
		if _, err = io.ReadFull(r, b); err != nil {
			return nil, err
		}
		cmd = append(cmd, string(b[:len(b)-2]))
	}
	if err == nil && len(cmd) == 0 {
		err = io.ErrUnexpectedEOF
	}
	return cmd, err
}
