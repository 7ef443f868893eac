package zkstore

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

// The client waits for a second where it is told to: while a leader is elected it must not.
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
		h := &hosts{servers: []string{"a"}, greeting: firstGreeting, dial: func(string, string, time.Duration) (net.Conn, error) {
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
