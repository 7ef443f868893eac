//go:build long

package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/fencing/redisfence"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/once"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/internal/redistest"
)

// fipsServer is the variable that has the address of the server for a process in FIPS mode.
const fipsServer = "INTERLOCK_TEST_FIPS_SERVER"

// In this mode Go panics at a hash that FIPS 140-3 does not approve. Redis names scripts by
// such a hash, so that a program stopped before main.
func TestAProgramWorksWithFIPSAlone(t *testing.T) {
	if addr := os.Getenv(fipsServer); addr != "" { // in the process that is started below
		if err := locksAndRecords(t.Context(), addr); err != nil {
			t.Fatal(err)
		}
		return
	}
	server := redistest.Start(t)
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestAProgramWorksWithFIPSAlone$", "-test.v")
	cmd.Env = append(os.Environ(), "GODEBUG=fips140=only", fipsServer+"="+server.Addr())
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: TestAProgramWorksWithFIPSAlone") {
		t.Errorf("with GODEBUG=fips140=only: %v; want a program that locks and stores\n%s", err, out)
	}
}

// locksAndRecords takes a lock, writes a fenced value under it, and stores an answer.
func locksAndRecords(ctx context.Context, addr string) (err error) {
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer func() { err = errors.Join(err, rdb.Close()) }()
	store, err := redisstore.New(rdb)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	locker, err := core.New(store)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, locker.Close(ctx)) }()
	engine, err := idempotency.New(store, idempotency.Global())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, engine.Close(ctx)) }()

	lease, err := locker.Lock(ctx, "account/42")
	if err != nil {
		return err
	}
	values := redisfence.New(rdb)
	hold := redisfence.Hold{Key: "balance/42", Token: lease.Token()}
	if _, err := values.Claim(ctx, hold); err != nil {
		return err
	}
	if err := values.Write(ctx, redisfence.Change{Hold: hold, Set: map[string]string{"cents": "100"}}); err != nil {
		return err
	}
	if err := lease.Release(ctx); err != nil {
		return err
	}
	for range 2 {
		n, err := once.Do(ctx, engine, "charge/1", 30, func(context.Context, int) (int, error) { return 7, nil })
		if err != nil || n != 7 {
			return fmt.Errorf("an answer of %d, %w; want 7", n, err)
		}
	}
	return nil
}
