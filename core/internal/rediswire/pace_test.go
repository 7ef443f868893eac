package rediswire

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core/driver"
)

// Four hundred callers made up to 1,440 connections a second to a proxy that accepts and closes them.
func TestCallersOfAnAbsentServerShareABoundedRateOfConnections(t *testing.T) {
	t.Parallel()
	const connections = freeDials + 40
	proxy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	rdb := redis.NewClient(&redis.Options{Addr: proxy.Addr().String()})
	defer func() { _ = rdb.Close() }()
	s, err := Open(rdb, DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var callers sync.WaitGroup
	for range 400 {
		callers.Go(func() {
			for ctx.Err() == nil {
				_, _ = s.Acquire(ctx, driver.AcquireRequest{
					Key: "k", Owner: "o:1", TTL: time.Second, Late: func(driver.Reply, error) {}, Deadline: time.Now().Add(time.Second),
				})
			}
		})
	}
	began := time.Now()
	for range connections {
		cn, err := proxy.Accept()
		if err != nil {
			t.Fatal(err)
		}
		_ = cn.Close()
	}
	took := time.Since(began)
	cancel()
	_ = proxy.Close()
	callers.Wait()
	_ = s.Close()
	// Connections that were made at once can be accepted later: a few, for each lane of the store.
	if least := (connections - 2*freeDials) * dialPause; took < least {
		t.Errorf("%d connections within %v; want at least %v", connections, took, least)
	}
}

// Requests with little time must not add up to a pause that lasts.
func TestDialsThatGiveUpKeepNoOtherWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDialer(newQuiet(), 0, time.Hour)
		defer d.close()
		for range freeDials {
			_ = d.await(t.Context(), "a:1")
		}
		for range 1000 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			_ = d.await(ctx, "a:1")
			cancel()
		}
		began := time.Now()
		if err := d.await(t.Context(), "a:1"); err != nil || time.Since(began) > dialPause {
			t.Errorf("a dial waited for %v, %v; want at most %v", time.Since(began), err, dialPause)
		}
	})
}

// The first byte from a server that is back ends all pauses.
func TestAServerThatIsBackIsDialedWithoutAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var away atomic.Bool
		away.Store(true)
		dial := newDialer(newQuiet(), 0, time.Hour)
		defer dial.close()
		through := dial.through(func(context.Context, string, string) (net.Conn, error) {
			ours, theirs := net.Pipe()
			if away.Load() {
				_ = theirs.Close()
				return ours, nil
			}
			go func() { _, _ = theirs.Write([]byte("+OK\r\n")); _ = theirs.Close() }()
			return ours, nil
		})
		answered := func() bool {
			cn, _ := through(t.Context(), "tcp", "a:1")
			defer cn.Close()
			n, _ := cn.Read(make([]byte, 16))
			return n > 0
		}
		began := time.Now()
		const many = 100
		for range freeDials + many {
			if answered() {
				t.Fatal("a closed connection has answered")
			}
		}
		if took := time.Since(began); took != many*dialPause {
			t.Errorf("%d dials to a server that is away took %v; want %v", freeDials+many, took, many*dialPause)
		}
		away.Store(false)
		began = time.Now()
		var all sync.WaitGroup
		for range many {
			all.Go(func() {
				if !answered() {
					t.Error("the server is back, and a connection has no answer")
				}
			})
		}
		all.Wait()
		if took := time.Since(began); took > dialPause {
			t.Errorf("%d dials took %v after the server was back; want at most one pause of %v", many, took, dialPause)
		}
	})
}
