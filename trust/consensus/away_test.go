//go:build long && linux

package consensus_test

import (
	"flag"
	"net"
	"testing"
	"time"
)

// wayLasts is how long the way takes from a client to a member: go test -args -away 1ms.
var wayLasts = flag.Duration("away", 250*time.Microsecond, "how long each way between a client and a member takes where rates are measured")

// allFar returns addresses that lead to others, each by a way that takes as long as the flag says.
func allFar(t *testing.T, addrs []string) (far []string) {
	t.Helper()
	for _, to := range addrs {
		far = append(far, listen(t, func(near net.Conn) {
			member, err := net.Dial("tcp", to)
			if err != nil {
				_ = near.Close()
				return
			}
			go delay(near, member)
			delay(member, near)
		}))
	}
	return far
}

// delay passes on what comes from a connection, after a time, until one of the two ends.
func delay(from, to net.Conn) {
	type part struct {
		data []byte
		due  time.Time
	}
	parts := make(chan part, 10_000)
	go func() {
		defer close(parts)
		for {
			data := make([]byte, 32<<10)
			n, err := from.Read(data)
			if err != nil {
				return
			}
			parts <- part{data[:n], time.Now().Add(*wayLasts)}
		}
	}()
	for p := range parts {
		time.Sleep(time.Until(p.due))
		if _, err := to.Write(p.data); err != nil {
			break
		}
	}
	_, _ = from.Close(), to.Close()
	for range parts { // so that the reader ends
		continue
	}
}
