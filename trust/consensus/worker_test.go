//go:build long && linux

package consensus_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/etcdstore"
)

// The test binary is a process that uses locks, if its environment says how.
const workerEnv = "INTERLOCK_TEST_WORKER"

const (
	callers  = 3 // of each process, for each key
	sameKeys = 3
)

// kinds are the kinds of holds that the callers of a process want where locks are shared: of each key, by the number of
// the caller. Exclusive locks have no letter.
var kinds = [sameKeys][callers]string{{"", "", ""}, {"/s", "/s", ""}, {"/p", "/p", "/p"}}

// permits is how many callers hold a key at once that is limited.
const permits = 2

// held is one hold of a lock, as its process saw it: from when the lock was granted to the
// last moment at which the process asked itself whether it has the lock, and it had. A
// process that was stopped right after the grant had it at no moment: to is zero then. Times
// are of the monotonic clock of the machine, in nanoseconds.
type held struct {
	key, process string
	token        int64
	from, to     int64
	lost         bool
}

// instant is the monotonic clock that all processes of the machine have in common.
func instant() int64 {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		panic(err)
	}
	return now.Nano()
}

// taker takes a lock. It returns the token, whether the caller still has the lock, and how to
// give it up.
type taker func(ctx context.Context, key string) (token int64, has func() bool, release func(), err error)

// takers are the locks that are tried, by kind.
var takers = map[string]func(addrs []string, lease time.Duration) (taker, error){
	"interlock":      onEtcd(interlocked),
	"interlock-long": onEtcd(interlocked),
	"lease":          onEtcd(leased),
	"zookeeper":      onZooKeeper(zookeeperLocked),
	"zookeeper-long": onZooKeeper(zookeeperLocked),
	"ephemeral":      onZooKeeper(ephemeral),
	// The leases are so long that processes take offers.
	"interlock-kinds": onEtcd(interlocked),
	"zookeeper-kinds": onZooKeeper(zookeeperLocked),
	"nats":            onNATS(natsLocked),
	"nats-kinds":      onNATS(natsLocked),
	"nats-long":       onNATS(natsLocked),
	"nats-value":      onNATS(natsValue),
}

// onEtcd makes a client of etcd for a lock.
func onEtcd(lock func(*clientv3.Client, time.Duration) (taker, error)) func([]string, time.Duration) (taker, error) {
	return func(addrs []string, lease time.Duration) (taker, error) {
		client, err := etcdstore.Connect(clientv3.Config{Endpoints: addrs, Logger: zap.NewNop()})
		if err != nil {
			return nil, err
		}
		return lock(client, lease)
	}
}

// work takes locks until the process is killed, and prints each hold.
func work(how []string) error {
	kind, lease, addrs := how[0], how[1], how[2:]
	ttl, err := time.ParseDuration(lease)
	if err != nil {
		return err
	}
	take, err := takers[kind](addrs, ttl)
	if err != nil {
		return err
	}
	usual := 20 * time.Millisecond
	switch kind {
	case "lease":
		usual = ttl // so that a lock is held on each lease that ends
	case "interlock-long", "zookeeper-long", "nats-long":
		usual = 3 * ttl // so that a holder that is cut off would go on for longer than its lease
	}
	var mu sync.Mutex
	var all sync.WaitGroup
	for n := range callers * sameKeys {
		key := fmt.Sprint("key-", n%sameKeys)
		if strings.HasSuffix(kind, "-kinds") {
			key += kinds[n%sameKeys][n/sameKeys]
		}
		all.Go(func() {
			for {
				hold(take, key, usual, ttl, func(h held) {
					mu.Lock()
					defer mu.Unlock()
					fmt.Printf("%s %d %d %d %v\n", h.key, h.token, h.from, h.to, h.lost)
				})
			}
		})
	}
	all.Wait()
	return nil
}

// hold takes a lock once, and holds it: mostly as usual, sometimes for more than a lease.
func hold(take taker, key string, usual, lease time.Duration, report func(held)) {
	ctx, cancel := context.WithTimeout(context.Background(), 4*lease)
	defer cancel()
	token, has, release, err := take(ctx, key)
	if err != nil {
		pause(20 * time.Millisecond)
		return
	}
	h := held{key: key, token: token, from: instant()}
	long := rand.N(usual)
	if rand.N(12) == 0 {
		long = rand.N(2 * lease)
	}
	for end, goOn := time.Now().Add(long), true; goOn; pause(time.Millisecond) {
		goOn = time.Now().Before(end) // a process that was stopped looks once more
		now := instant()
		if !has() {
			h.lost = true
			break
		}
		h.to = now
	}
	report(h)
	release()
}

func interlocked(client *clientv3.Client, lease time.Duration) (taker, error) {
	store, err := etcdstore.New(client)
	if err != nil {
		return nil, err
	}
	return byLocker(store, lease)
}

// byLocker takes locks with a locker.
func byLocker(store core.Store, lease time.Duration) (taker, error) {
	locker, err := core.New(store, core.Watchdog(lease))
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, key string) (int64, func() bool, func(), error) {
		name, kind, _ := strings.Cut(key, "/")
		var opts []core.Option
		switch kind {
		case "s":
			opts = append(opts, core.Shared())
		case "p":
			opts = append(opts, core.Permits(permits))
		}
		l, err := locker.Lock(ctx, name, opts...)
		if err != nil {
			return 0, nil, nil, err
		}
		return l.Token(), func() bool { return l.Err() == nil }, func() { _ = l.Release(context.Background()) }, nil
	}, nil
}

// leased is the control: the mutex of etcd's client, on a lease of etcd.
func leased(client *clientv3.Client, lease time.Duration) (taker, error) {
	var mu sync.Mutex
	var session *concurrency.Session
	current := func() (*concurrency.Session, error) {
		mu.Lock()
		defer mu.Unlock()
		if session != nil {
			select {
			case <-session.Done():
			default:
				return session, nil
			}
		}
		ctx, cancel := context.WithTimeout(context.Background(), lease)
		defer cancel()
		granted, err := client.Grant(ctx, int64(lease/time.Second))
		if err != nil {
			return nil, err
		}
		session, err = concurrency.NewSession(client, concurrency.WithLease(granted.ID))
		return session, err
	}
	local := map[string]chan struct{}{} // the mutex is not for two goroutines of a session
	for n := range sameKeys {
		local[fmt.Sprint("key-", n)] = make(chan struct{}, 1)
	}
	return func(ctx context.Context, key string) (int64, func() bool, func(), error) {
		select {
		case local[key] <- struct{}{}:
		case <-ctx.Done():
			return 0, nil, nil, ctx.Err()
		}
		s, err := current()
		if err != nil {
			<-local[key]
			return 0, nil, nil, err
		}
		m := concurrency.NewMutex(s, "control/"+key)
		if err := m.Lock(ctx); err != nil {
			<-local[key]
			return 0, nil, nil, err
		}
		has := func() bool {
			select {
			case <-s.Done():
				return false
			default:
				return true
			}
		}
		return m.Header().Revision, has, func() {
			defer func() { <-local[key] }()
			ctx, cancel := context.WithTimeout(context.Background(), lease)
			defer cancel()
			_ = m.Unlock(ctx)
		}, nil
	}, nil
}

// worker is such a process.
type worker struct {
	t     *testing.T
	name  string
	cmd   *exec.Cmd
	holds chan<- held
	ended chan struct{}
}

// startWorker starts a process that takes locks of a kind.
func startWorker(t *testing.T, s servers, name, kind string, lease time.Duration, holds chan<- held) *worker {
	t.Helper()
	how := append([]string{kind, lease.String()}, s.addrs()...)
	w := &worker{t: t, name: name, holds: holds, ended: make(chan struct{})}
	w.cmd = exec.Command(os.Args[0])
	w.cmd.Env = append(os.Environ(), workerEnv+"="+strings.Join(how, " "))
	w.cmd.Stderr = io.Discard
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	w.cmd.Stdout = in
	_, err = launch(w.cmd)
	_ = in.Close() // the process has it
	if err != nil {
		t.Fatal(err)
	}
	go w.read(out)
	t.Cleanup(w.kill)
	return w
}

// read reads the output of a process.
func (w *worker) read(out io.ReadCloser) {
	defer close(w.ended)
	defer out.Close()
	for lines := bufio.NewScanner(out); lines.Scan(); {
		h := held{process: w.name}
		_, err := fmt.Sscanf(lines.Text(), "%s %d %d %d %t", &h.key, &h.token, &h.from, &h.to, &h.lost)
		if err == nil && !strings.HasSuffix(lines.Text(), " ") {
			w.holds <- h
		}
	}
}

func (w *worker) signal(s syscall.Signal) {
	if err := w.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		w.t.Error(err)
	}
}

// kill ends a process, and waits until all that it printed is read.
func (w *worker) kill() {
	_ = w.cmd.Process.Kill()
	<-w.ended
}
