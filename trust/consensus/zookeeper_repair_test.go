//go:build long && linux

package consensus_test

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/casstore"
)

// The commands of docs/consensus.md are executed as they stand there, by ZooKeeper's own shell.
func TestTheCommandsOfTheDocumentShowAndRepairLocksOnZooKeeper(t *testing.T) {
	const lease = 15 * time.Second
	e := newEnsemble(t)
	script := scripts(t, "")
	if len(script) != 1 {
		t.Fatalf("the document has %d scripts", len(script))
	}
	const freeing = "set -v 3 "
	look, repair, found := strings.Cut(script[0], freeing)
	if !found {
		t.Fatalf("the script frees no lock:\n%s", script[0])
	}
	var lockers [2]*core.Locker
	for i := range lockers {
		var err error
		if lockers[i], err = core.New(openOn(t, e.conn(), casstore.Timeout(limit)), core.Watchdog(lease)); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = lockers[i].Close(context.Background()) })
	}
	ctx, cancel := timeout(t, time.Minute)
	defer cancel()
	held, err := lockers[0].Lock(ctx, "account/42")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = held.Release(context.Background()) }()
	data, stat, err := e.conn().Get("/interlock/account%2F42/lock")
	if err != nil {
		t.Fatal(err)
	}
	shown := e.shell(look)
	for _, part := range []string{"/interlock/account%2F42/lock\n", string(data) + "\n", fmt.Sprintf("dataVersion = %d\n", stat.Version)} {
		if !strings.Contains(shown, part) {
			t.Errorf("%q is not shown in\n%s", part, shown)
		}
	}
	free := func(version int32) string { return e.shell(fmt.Sprintf("set -v %d %s", version, repair)) }
	if said := free(stat.Version + 1); !strings.Contains(said, "version No is not valid") || held.Err() != nil {
		t.Errorf("at another version: %s, %v", said, held.Err())
	}
	begin := time.Now()
	free(stat.Version)
	next, err := lockers[1].Lock(ctx, "account/42")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = next.Release(context.Background()) }()
	if next.Token() <= held.Token() {
		t.Errorf("the token %d comes after %d", next.Token(), held.Token())
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
	if said := free(stat.Version); !strings.Contains(said, "version No is not valid") || next.Err() != nil {
		t.Errorf("the same once more, with the next holder: %s, %v", said, next.Err())
	}
}

// shell has ZooKeeper's shell execute some commands, and returns its output.
func (e *ensemble) shell(commands string) string {
	e.t.Helper()
	cmd := exec.CommandContext(e.t.Context(), "/usr/share/zookeeper/bin/zkCli.sh", "-server", strings.Join(e.addrs(), ","))
	cmd.Stdin = strings.NewReader(commands)
	said, err := cmd.CombinedOutput()
	if err != nil {
		e.t.Logf("zkCli.sh: %v", err) // it ends so after a command that fails
	}
	return string(said)
}
