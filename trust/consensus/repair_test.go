//go:build long && linux

package consensus_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/casstore"
)

// The commands of docs/consensus.md are executed as they stand there, by the etcdctl of this
// version: they show a lock, and take it from its holder.
func TestTheCommandsOfTheDocumentShowAndRepairLocksOnEtcd(t *testing.T) {
	const lease = 15 * time.Second
	c := newCluster(t)
	look, repair := commands(t)
	holder, other := locking(t, c, lease), locking(t, c, lease)
	held, err := holder.Lock(t.Context(), "account/42")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = held.Release(context.Background()) }()
	next := make(chan *core.Lease, 1)
	ctx, cancel := timeout(t, time.Minute)
	defer cancel()
	go func() {
		got, err := other.Lock(ctx, "account/42")
		if err != nil {
			t.Errorf("the process that waits: %v", err)
		}
		next <- got
	}()
	client := c.client()
	const line = "interlock/account%2F42/line"
	for listed := false; !listed; pause(10 * time.Millisecond) {
		got, err := client.Get(ctx, line)
		if err != nil {
			t.Fatal(err)
		}
		listed = len(got.Kvs) > 0
	}
	lock, err := client.Get(ctx, "interlock/account%2F42/lock")
	if err != nil || len(lock.Kvs) != 1 {
		t.Fatalf("%v, %v", lock, err)
	}
	process := regexp.MustCompile(`"process":"(.*?)"`).FindStringSubmatch(string(lock.Kvs[0].Value))[1]
	revision := fmt.Sprint(lock.Kvs[0].ModRevision)

	const condition = "interlock/account%2F42/held/owner" // of a holder that has called Held
	if _, err := client.Put(ctx, condition, "1"); err != nil {
		t.Fatal(err)
	}
	shown := c.shell(assign(t, look, "process", process))
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{
		"interlock/account%2F42/lock\n", fmt.Sprintf("\"Value\" : %q\n", lock.Kvs[0].Value), "\"ModRevision\" : " + revision + "\n",
		line, "interlock/:beat/" + process + "/15000\n", host, fmt.Sprint(os.Getpid()),
	} {
		if !strings.Contains(shown, part) {
			t.Errorf("%q is not shown in\n%s", part, shown)
		}
	}

	key := "key=interlock/account%2F42\n"
	if said := c.shell(key + assign(t, repair, "revision", "1")); !strings.HasPrefix(said, "FAILURE") {
		t.Errorf("at another revision: %s", said)
	}
	if held.Err() != nil {
		t.Errorf("a transaction that failed took the lock: %v", held.Err())
	}
	begin := time.Now()
	if said := c.shell(key + assign(t, repair, "revision", revision)); !strings.HasPrefix(said, "SUCCESS") {
		t.Fatalf("at the revision: %s", said)
	}
	if left, err := client.Get(ctx, condition); err != nil || len(left.Kvs) > 0 {
		t.Errorf("the entry for the holder's own transactions: %v, %v; want it deleted with the lock", left, err)
	}
	got := <-next
	if got == nil {
		t.FailNow()
	}
	defer func() { _ = got.Release(context.Background()) }()
	t.Logf("the process that waits has the lock after %v", time.Since(begin))
	if got.Token() <= held.Token() {
		t.Errorf("the token %d comes after %d", got.Token(), held.Token())
	}
	select {
	case <-held.Context().Done():
	case <-ctx.Done():
		t.Fatal("the holder does not learn that it has lost the lock")
	}
	t.Logf("the holder learns it after %v", time.Since(begin))
	if took := time.Since(begin); took >= lease || !errors.Is(held.Err(), core.ErrLost) {
		t.Errorf("the holder learns %v after %v", held.Err(), took)
	}
	if said := c.shell(key + assign(t, repair, "revision", revision)); !strings.HasPrefix(said, "FAILURE") || got.Err() != nil {
		t.Errorf("the same once more, with the next holder: %s, %v", said, got.Err())
	}
}

// locking makes a locker on etcd that is closed with the test.
func locking(t *testing.T, c *cluster, lease time.Duration) *core.Locker {
	t.Helper()
	locker, err := core.New(open(t, c.client(), casstore.Timeout(limit)), core.Watchdog(lease))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = locker.Close(context.Background()) })
	return locker
}

// commands returns the commands of docs/consensus.md for etcdctl: to look, and to repair.
func commands(t *testing.T) (look, repair string) {
	t.Helper()
	found := scripts(t, "sh")
	if len(found) != 2 {
		t.Fatalf("the document has %d scripts", len(found))
	}
	return found[0], found[1]
}

// scripts returns the scripts of a language that tell how to see and repair.
func scripts(t *testing.T, language string) (found []string) {
	t.Helper()
	page, err := os.ReadFile("../../docs/consensus.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n## See and repair\n")
	section, _, _ = strings.Cut(section, "\n## ")
	for _, one := range regexp.MustCompile("(?s)\n```([a-z]*)\n(.*?)```").FindAllStringSubmatch(section, -1) {
		if one[1] == language {
			found = append(found, one[2])
		}
	}
	return found
}

// assign gives a variable of a script another value.
func assign(t *testing.T, script, name, value string) string {
	t.Helper()
	line := regexp.MustCompile("(?m)^" + name + "=.*$")
	if !line.MatchString(script) {
		t.Fatalf("the script does not set %s:\n%s", name, script)
	}
	return line.ReplaceAllString(script, name+"="+value)
}

// shell runs a script with an etcdctl for the cluster, and returns its output.
func (c *cluster) shell(script string) string {
	c.t.Helper()
	dir := c.t.TempDir()
	etcdctl := fmt.Sprintf("#!/bin/sh\n%s=1 exec %q \"$@\"\n", etcdctlEnv, os.Args[0])
	if err := os.WriteFile(filepath.Join(dir, "etcdctl"), []byte(etcdctl), 0o700); err != nil { //nolint:gosec // it is executed
		c.t.Fatal(err)
	}
	cmd := exec.CommandContext(c.t.Context(), "sh", "-e", "-c", script)
	cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "ETCDCTL_ENDPOINTS="+strings.Join(c.addrs(), ","))
	said, err := cmd.CombinedOutput()
	if err != nil {
		c.t.Fatalf("%v: %s", err, said)
	}
	return string(said)
}
