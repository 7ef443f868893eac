package rediswire

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/logs"
	"github.com/interlock-go/interlock/internal/redistest"
)

// newStore makes a store that is closed after the test.
func newStore(tb testing.TB, rdb redis.UniversalClient) *Store {
	tb.Helper()
	s := open(tb, rdb, func(*Config) {})
	tb.Cleanup(func() {
		if err := s.Close(); err != nil {
			tb.Error(err)
		}
	})
	return s
}

// open makes a store that does not log. A try takes as long as a machine that stands still:
// some tests are about tries that are given up, and they say so.
func open(tb testing.TB, rdb redis.UniversalClient, change func(*Config)) *Store {
	tb.Helper()
	set := DefaultConfig()
	set.Log, set.Timeout = newQuiet(), time.Minute
	change(&set)
	s, err := Open(rdb, set)
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

var (
	errMaybe = errors.New("the server may have been asked")
	errHeld  = errors.New("held by another owner")
)

// acquireWithin takes a lock for a new owner, with so much time for it. Its error is
// errMaybe if the lock may have been taken nevertheless.
func acquireWithin(ctx context.Context, s *Store, key string, within time.Duration) error {
	rep, err := s.Acquire(ctx, driver.AcquireRequest{
		Key: key, Owner: key + ":1", TTL: 30 * time.Second, Deadline: time.Now().Add(within),
		Late: func(driver.Reply, error) {},
	})
	switch {
	case err != nil && rep.Ambiguous:
		return fmt.Errorf("%w: %w", errMaybe, err)
	case err == nil && !rep.Granted:
		return errHeld
	}
	return err
}

// silence returns the address of a server that accepts connections and says nothing.
func silence(tb testing.TB) string {
	tb.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			cn, err := listener.Accept()
			if err != nil {
				return
			}
			tb.Cleanup(func() { _ = cn.Close() })
		}
	}()
	return listener.Addr().String()
}

// go-redis dials TLS with a function that knows no context, for as long as the
// user's DialTimeout says: the handshake of a connection that was cut held a caller
// for 15 s in place of 3, and Close for 17.5 s.
func TestADialThatHangsIsBoundedByTheStore(t *testing.T) {
	t.Parallel()
	forever := make(chan struct{})
	t.Cleanup(func() { close(forever) })
	addr := silence(t)
	for name, o := range map[string]*redis.Options{
		"TLS handshake": {Addr: addr, TLSConfig: &tls.Config{InsecureSkipVerify: true}}, //nolint:gosec // it never comes to it
		"Dialer without any bound": {Addr: addr, Dialer: func(context.Context, string, string) (net.Conn, error) {
			<-forever
			return nil, errors.New("too late")
		}},
		"Dialer without any bound, behind Sentinel": {Addr: "FailoverClient", Dialer: func(context.Context, string, string) (net.Conn, error) {
			<-forever
			return nil, errors.New("too late")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o.DialTimeout = 24 * time.Hour
			rdb := redis.NewClient(o)
			defer rdb.Close()
			s := open(t, rdb, func(set *Config) { set.Timeout = 50 * time.Millisecond })
			stop := s.Calls("w1", func(driver.Call) {}) // a subscription hangs too
			err := acquireWithin(t.Context(), s, "k", 24*time.Hour)
			if !errors.Is(err, driver.ErrUnavailable) || errors.Is(err, errMaybe) {
				t.Errorf("Acquire: %v", err)
			}
			stop()
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestADialerThatNeverReturnsIsCalledABoundedNumberOfTimes(t *testing.T) {
	t.Parallel()
	var calls atomic.Int64
	forever := make(chan struct{})
	defer close(forever)
	d := newDialer(nil, 0, time.Millisecond)
	dial := d.through(func(context.Context, string, string) (net.Conn, error) {
		calls.Add(1)
		<-forever
		return nil, errors.New("too late")
	})
	for range maxDialing + 10 {
		d.serves("a:1") // no pause before the next dial
		cn, err := dial(t.Context(), "tcp", "a:1")
		if err != nil {
			t.Fatal("go-redis counts it:", err)
		}
		if _, err = cn.Write(nil); fateOf(err) != unsent {
			t.Fatal(err)
		}
	}
	// A dial is given up after a millisecond; its goroutine may begin later.
	redistest.Eventually(t, time.Minute, func(context.Context) error {
		if n := calls.Load(); n < maxDialing {
			return fmt.Errorf("%d calls, want %d", n, maxDialing)
		}
		return nil
	})
	if n := calls.Load(); n != maxDialing {
		t.Errorf("%d calls, want %d", n, maxDialing)
	}
	other := make(chan struct{})
	_, _ = d.through(func(context.Context, string, string) (net.Conn, error) {
		close(other)
		return nil, errors.New("no")
	})(t.Context(), "tcp", "b:1")
	select {
	case <-other:
	case <-time.After(time.Minute):
		t.Error("another address is not dialed either")
	}
}

// A connection that was dialed while the master was another one is not used.
func TestADialThatOutlivesAFailoverIsGivenUp(t *testing.T) {
	t.Parallel()
	for name, failOver := range map[string]func(*dialer){
		"the sentinels name another master":  func(d *dialer) { d.learn(2, []string{"new:1"}) },
		"a server says that it is no master": func(d *dialer) { d.sever() },
	} {
		t.Run(name, func(t *testing.T) {
			addr := silence(t)
			dialed, goOn := make(chan struct{}), make(chan struct{})
			d := newDialer(newQuiet(), 0, time.Minute)
			d.follow.ask = func(context.Context) ([]string, error) { return []string{"old:1"}, nil }
			dial := d.through(func(ctx context.Context, network, _ string) (net.Conn, error) {
				cn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
				close(dialed)
				<-goOn
				return cn, err
			})
			defer d.close()
			go func() {
				<-dialed
				failOver(d)
				close(goOn)
			}()
			cn, _ := dial(t.Context(), "tcp", "FailoverClient")
			if _, err := cn.Write([]byte("PING\r\n")); fateOf(err) != unsent {
				t.Errorf("a connection to the former master is used: %v", err)
			}
		})
	}
}

// A sentinel that was not told about a failover yet has the user's Dialer connect to the
// former master, after another sentinel has told the store.
func TestAConnectionToAFormerMasterIsNotUsed(t *testing.T) {
	t.Parallel()
	addr := silence(t)
	d := newDialer(newQuiet(), 0, 5*time.Second)
	defer d.close()
	d.follow.ask = func(context.Context) ([]string, error) { return []string{addr}, nil }
	dial := d.through(func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, addr)
	})
	usable := func() error {
		cn, _ := dial(t.Context(), "tcp", "FailoverClient")
		defer cn.Close()
		_, err := cn.Write([]byte("PING\r\n"))
		return err
	}
	if err := usable(); err != nil {
		t.Fatal(err)
	}
	const later = 1000 // than all questions of this test
	d.learn(later, []string{"new:1"})
	if err := usable(); fateOf(err) != unsent {
		t.Errorf("a connection to the former master is used: %v", err)
	}
	d.learn(later-1, []string{addr}) // an answer that was long on its way
	if err := usable(); fateOf(err) != unsent {
		t.Errorf("the answer to an earlier question is taken: %v", err)
	}
	d.learn(later+1, []string{addr})
	if err := usable(); err != nil {
		t.Errorf("it is the master again: %v", err)
	}
}

// go-redis asks an idle connection whether it lives before it uses it. The answer must
// be that the store has closed it.
func TestAClosedConnectionIsSeenBeforeItIsUsed(t *testing.T) {
	t.Parallel()
	addr := silence(t)
	d := newDialer(newQuiet(), 0, 5*time.Second)
	made, _ := d.through(new(net.Dialer).DialContext)(t.Context(), "tcp", addr)
	alive := func() error {
		raw, err := made.(syscall.Conn).SyscallConn()
		if err != nil {
			return err
		}
		return raw.Read(func(uintptr) bool { return true })
	}
	if err := alive(); err != nil {
		t.Errorf("an open connection: %v", err)
	}
	d.closeAll()
	if alive() == nil {
		t.Error("a closed connection passes for an open one")
	}
	_ = made.Close()
}

func TestAClustersTopologyIsNeverOlderThanTenSeconds(t *testing.T) {
	t.Parallel()
	for users, want := range map[time.Duration]time.Duration{
		0: 10 * time.Second, time.Minute: 10 * time.Second, time.Second: time.Second,
	} {
		o := privateCluster(&redis.ClusterOptions{ClusterStateReloadInterval: users}, newDialer(nil, 0, time.Second), time.Second, 1, nil)
		if got := o.ClusterStateReloadInterval; got != want {
			t.Errorf("%v of the user's becomes %v, want %v", users, got, want)
		}
	}
}

func TestNewNodeTakesSingleServersOnly(t *testing.T) {
	t.Parallel()
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}})
	defer cluster.Close()
	single := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer single.Close()
	replicated := DefaultConfig()
	replicated.Replicas, replicated.Within = 1, time.Second
	for name, c := range map[string]struct {
		rdb redis.UniversalClient
		set Config
	}{
		"a Cluster": {cluster, DefaultConfig()}, "nothing": {nil, DefaultConfig()}, "replicas": {single, replicated},
	} {
		if _, err := NewNode(c.rdb, func(Identity) error { return nil }, c.set); !errors.Is(err, driver.ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The store reaches the sentinels through the client that it was given, and says so
// if that is closed.
func TestAClosedSentinelClientIsNamedAsTheCause(t *testing.T) {
	t.Parallel()
	rdb := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "m", SentinelAddrs: []string{silence(t)}})
	s := newStore(t, rdb)
	if err := rdb.Close(); err != nil {
		t.Fatal(err)
	}
	err := acquireWithin(t.Context(), s, "k", time.Second)
	if !errors.Is(err, driver.ErrUnavailable) || !strings.Contains(err.Error(), "that was given to redisstore.New is closed") {
		t.Errorf("Acquire: %v", err)
	}
}
func newQuiet() *logs.Log { return logs.To(slog.New(slog.DiscardHandler)) }

// failoverOf returns what NewFailoverClient does, with one server after another for
// a master and no sentinel to ask.
func failoverOf(tb testing.TB, now *atomic.Pointer[redistest.Server]) *redis.Client {
	tb.Helper()
	rdb := redis.NewClient(&redis.Options{
		Addr: "FailoverClient",
		Dialer: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, now.Load().Addr())
		},
	})
	tb.Cleanup(func() { _ = rdb.Close() })
	return rdb
}
