package redistest

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// ShardingProxy stands before several servers and sends each command to the server of its
// first key, as the proxies do that distribute keys. It does not look at the other keys of a
// script. A command without a key goes to the first server. A connection carries out one
// command after the other.
type ShardingProxy struct {
	addr    string
	servers []*Server
	refused []string

	gate sync.RWMutex // read while a command is carried out
	of   func(key string) int
	open map[net.Conn]struct{} // the connections of clients; guarded by gate
}

// Sharding starts a [ShardingProxy] that ends with the test. of says which server a key is
// on, and refused which commands the proxy answers with an error.
func Sharding(tb testing.TB, servers []*Server, of func(key string) int, refused ...string) *ShardingProxy {
	tb.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	p := &ShardingProxy{
		addr: listener.Addr().String(), servers: servers, refused: refused, of: of, open: map[net.Conn]struct{}{},
	}
	var all sync.WaitGroup
	tb.Cleanup(all.Wait)
	tb.Cleanup(func() {
		_ = listener.Close()
		p.Distribute(func() {}, nil)
	})
	all.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			all.Go(func() { p.serve(client) })
		}
	})
	return p
}

// Addr is the address of the proxy.
func (p *ShardingProxy) Addr() string { return p.addr }

// Stop keeps all commands back while a function runs.
func (p *ShardingProxy) Stop(while func()) {
	p.gate.Lock()
	defer p.gate.Unlock()
	while()
}

// Distribute keeps all commands back while a function runs. Then it cuts all connections, and
// the keys have other servers. With nil the proxy serves no connection any more.
func (p *ShardingProxy) Distribute(while func(), of func(key string) int) {
	p.gate.Lock()
	defer p.gate.Unlock()
	while()
	p.of = of
	for c := range p.open {
		_ = c.Close()
	}
	clear(p.open)
}

// serve carries out the commands of a connection.
func (p *ShardingProxy) serve(client net.Conn) {
	defer client.Close() //nolint:errcheck // perhaps it is closed already
	p.gate.Lock()
	p.open[client] = struct{}{}
	p.gate.Unlock()
	defer func() {
		p.gate.Lock()
		defer p.gate.Unlock()
		delete(p.open, client)
	}()
	behind := make([]*bufio.ReadWriter, len(p.servers))
	for i, s := range p.servers {
		conn, err := net.Dial("tcp", s.Addr())
		if err != nil {
			return
		}
		defer conn.Close() //nolint:errcheck // nothing is lost by it
		behind[i] = bufio.NewReadWriter(bufio.NewReader(conn), bufio.NewWriter(conn))
	}
	for in := bufio.NewReader(client); ; {
		command, words, err := readValue(in)
		if err != nil || p.carryOut(client, behind, command, words) != nil {
			return
		}
	}
}

// carryOut has one server carry out a command, and hands its reply back.
func (p *ShardingProxy) carryOut(client net.Conn, behind []*bufio.ReadWriter, command string, words []string) error {
	p.gate.RLock()
	defer p.gate.RUnlock()
	if _, open := p.open[client]; !open || p.of == nil {
		return net.ErrClosed
	}
	name, key := strings.ToUpper(words[0]), 1
	switch name {
	case "EVAL", "EVALSHA":
		key = 3
	case "PING", "TIME", "SCRIPT", "INFO", "CONFIG", "ACL":
		key = len(words)
	}
	if slices.Contains(p.refused, name) {
		_, err := fmt.Fprintf(client, "-ERR unsupported command '%s'\r\n", name)
		return err
	}
	at := 0
	if key < len(words) {
		at = p.of(words[key])
	}
	server := behind[at]
	if _, err := server.WriteString(command); err != nil {
		return err
	}
	if err := server.Flush(); err != nil {
		return err
	}
	reply, _, err := readValue(server.Reader)
	if err != nil {
		return err
	}
	_, err = io.WriteString(client, reply)
	return err
}

// readValue reads a value of RESP2, as it came, and the strings of which an array consists.
func readValue(r *bufio.Reader) (raw string, words []string, err error) {
	raw, err = r.ReadString('\n')
	if err != nil {
		return raw, nil, err
	}
	switch n, _ := strconv.Atoi(strings.TrimSpace(raw[1:])); raw[0] {
	case '$':
		if n < 0 {
			break
		}
		text := make([]byte, n+2)
		_, err = io.ReadFull(r, text)
		return raw + string(text), []string{string(text[:n])}, err
	case '*':
		for range n {
			part, text, err := readValue(r)
			if err != nil {
				return raw, nil, err
			}
			raw, words = raw+part, append(words, text...)
		}
	}
	return raw, words, nil
}
