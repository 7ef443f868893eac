package memstore_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/once"
	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/internal/logtest"
)

// cluster is a store with two processes that have a locker and an engine each.
type cluster struct {
	store   *memstore.Store
	process [2]*memstore.Process
	locker  [2]*core.Locker
	engine  [2]*idempotency.Engine
}

func inCluster(t *testing.T, f func(t *testing.T, c *cluster)) {
	t.Helper()
	logtest.Default(t) // lost leases are logged
	synctest.Test(t, func(t *testing.T) {
		c := &cluster{store: memstore.New()}
		for i := range c.process {
			c.process[i] = c.store.Process()
			var err error
			if c.locker[i], err = core.New(c.process[i]); err != nil {
				t.Fatal(err)
			}
			if c.engine[i], err = idempotency.New(c.process[i], idempotency.Global()); err != nil {
				t.Fatal(err)
			}
		}
		f(t, c)
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		for i := range c.process {
			c.process[i].End()
			_ = c.locker[i].Close(ctx)
			_ = c.engine[i].Close(ctx)
		}
	})
}

// do runs a function under a key in a process.
func (c *cluster) do(i int, f func(ctx context.Context) error) error {
	_, err := once.Do(context.Background(), c.engine[i], "k", 1, func(ctx context.Context, _ int) (int, error) { return 1, f(ctx) })
	return err
}

func succeeds(context.Context) error { return nil }

func TestADeadProcessChangesNothingAndLeavesItsLocksAndClaimsForALease(t *testing.T) {
	inCluster(t, func(t *testing.T, c *cluster) {
		if _, err := c.locker[0].Lock(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		committed := make(chan error, 1)
		go func() {
			committed <- c.do(0, func(context.Context) error { c.process[0].Kill(); return nil })
		}()
		synctest.Wait()
		if n := c.process[0].Requests(memstore.Commit); n != 0 {
			t.Errorf("%d commits of a dead process arrived; want none", n)
		}
		if err := c.do(1, succeeds); !errors.Is(err, idempotency.ErrInFlight) {
			t.Errorf("the other process got %v; want the claim in flight until its lease ends", err)
		}
		begin := time.Now()
		if _, err := c.locker[1].Lock(t.Context(), "a"); err != nil || time.Since(begin) < 25*time.Second || time.Since(begin) > 31*time.Second {
			t.Errorf("the other process waited %v for the lock (%v); want the rest of a lease of 30 s", time.Since(begin), err)
		}
		if err := c.do(1, succeeds); err != nil {
			t.Errorf("after the lease: %v; want a run", err)
		}
		select {
		case err := <-committed:
			t.Errorf("a request of the dead process was answered: %v; want no answer before End", err)
		default:
		}
		c.process[0].End()
		<-committed //nolint:errcheck // the function ran, so any result is right
	})
}

func TestAProcessThatStandsStillGetsItsAnswersAndNotificationsLater(t *testing.T) {
	inCluster(t, func(t *testing.T, c *cluster) {
		lease, err := c.locker[1].Lock(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		granted := make(chan time.Time, 1)
		go func() {
			if _, err := c.locker[0].Lock(t.Context(), "a"); err == nil {
				granted <- time.Now()
			}
		}()
		synctest.Wait()
		c.process[0].Stop()
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute)
		if len(granted) > 0 {
			t.Error("a process that stands still took a lock; want it to wait until Continue")
		}
		begin := time.Now()
		c.process[0].Continue()
		if at := <-granted; at.Sub(begin) > 2*time.Second {
			t.Errorf("it got the lock %v after Continue; want it at once", at.Sub(begin))
		}
	})
}

func TestAProcessThatIsCutOffFailsAndIsWokenWhenItIsBack(t *testing.T) {
	inCluster(t, func(t *testing.T, c *cluster) {
		woken := make(chan time.Time, 9)
		claim := record.ClaimRequest{ID: "record", Token: "1", Lease: time.Minute, Retention: time.Hour}
		if _, err := c.process[1].Claim(t.Context(), claim); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		stop := c.process[0].Await("record", time.Now(), func() { woken <- time.Now() })
		defer stop()
		c.process[0].CutOff()
		if _, err := c.locker[0].TryLock(t.Context(), "b"); !errors.Is(err, core.ErrUnavailable) {
			t.Errorf("a process that is cut off got %v; want ErrUnavailable", err)
		}
		time.Sleep(time.Second)
		if err := c.process[1].Abandon(t.Context(), record.AbandonRequest{ID: "record", Token: "1"}); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second)
		if len(woken) > 0 {
			t.Error("woken while it is cut off; want no notification")
		}
		begin := time.Now()
		c.process[0].Continue()
		if at := <-woken; at != begin {
			t.Errorf("woken %v after Continue; want it at once, as the claim has ended", at.Sub(begin))
		}
		if lease, err := c.locker[0].TryLock(t.Context(), "b"); err != nil {
			t.Errorf("after Continue: %v; want the lock", err)
		} else if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestAProcessCanDieBetweenARequestAndItsAnswer(t *testing.T) {
	inCluster(t, func(t *testing.T, c *cluster) {
		c.process[0].Intercept(func(r memstore.Request) memstore.Fault {
			if r.Op == memstore.Commit {
				return memstore.Fault{Then: c.process[0].Kill}
			}
			return memstore.Fault{}
		})
		done := make(chan error, 1)
		go func() { done <- c.do(0, succeeds) }()
		synctest.Wait()
		err := c.do(1, func(context.Context) error {
			t.Error("the function ran again; want the answer of the dead process")
			return nil
		})
		if err != nil {
			t.Errorf("got %v; want the stored answer", err)
		}
		c.process[0].End()
		<-done //nolint:errcheck // the function ran, so any result is right
	})
}
