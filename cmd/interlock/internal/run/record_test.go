package run

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/memstore"
)

// job is a command with -per on a store in memory.
type job struct {
	*Command
	t       *testing.T
	store   *memstore.Store
	records *Records
	said    []string
}

func daily(t *testing.T, store *memstore.Store, wait time.Duration) *job {
	t.Helper()
	j := &job{Command: &Command{key: "k", wait: wait, ttl: defaultTTL, per: 24 * time.Hour, busy: StatusBusy}, t: t, store: store}
	var err error
	if j.records, err = NewRecords(store, j.ttl, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = j.records.Close(ctx)
	})
	return j
}

// ends runs the command, which ends with status, and compares the status of the wrapper.
func (j *job) ends(status, want int, wantRan bool, says string, stopped func() int) {
	j.t.Helper()
	j.said = nil
	log := logger{func(line string) { j.said = append(j.said, line) }, "k"}
	got, ran := j.recorded(j.t.Context(), j.records, 7, stopped, log, func() int { return status })
	if text := strings.Join(j.said, "\n"); got != want || ran != wantRan || !strings.Contains(text, says) || (says == "") != (text == "") {
		j.t.Errorf("status %d, ran %v, and it said %q; want %d, %v and %q", got, ran, text, want, wantRan, says)
	}
}

func pause() int { time.Sleep(lookAgain); return 0 }

// A period has a run when a command has succeeded under its lock, and no earlier.
func TestAPeriodIsDoneAfterASuccess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		one, other := daily(t, store, 0), daily(t, store, 0)
		one.ends(3, 3, true, "", pause)
		other.ends(StatusLost, StatusLost, true, "", pause) // it may have run beside another one
		one.ends(0, 0, true, "", pause)
		other.ends(0, 0, false, "has run in this period: by ", pause)
		last, ok, err := other.records.Last(t.Context(), "k")
		if err != nil || !ok || last.Status != 0 || last.Token != 7 || last.Host == "" || last.PID == 0 {
			t.Errorf("the last run is %+v, %v, %v; want the first host's", last, ok, err)
		}
		time.Sleep(24 * time.Hour)
		other.ends(0, 0, true, "", pause)
	})
}

// A wrapper that was killed leaves its claim for a lease. A run that waits stays for that, and a run
// that does not wait comes again with the next line of cron.
func TestARunFollowsAWrapperThatDied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		died, cron, waits := daily(t, store, 0), daily(t, store, 0), daily(t, store, forever)
		dead := make(chan struct{})
		defer close(dead)
		claimed := make(chan struct{})
		go func() {
			_, _ = died.recorded(context.Background(), died.records, 1, pause, logger{func(string) {}, "k"}, func() int {
				close(claimed)
				<-dead
				return 0
			})
		}()
		<-claimed
		cron.ends(0, StatusBusy, false, "is run by another host in this period, or its wrapper died less than 30s ago", pause)
		if stage, err := cron.records.Done(t.Context(), "k", cron.per); stage != idempotency.StageInProgress || err != nil {
			t.Errorf("a monitor sees %s, %v; want that it runs", stage, err)
		}
		waits.ends(0, 128+2, false, "", func() int { return 2 }) // SIGINT
		began := time.Now()
		time.AfterFunc(time.Second, func() { store.LapseClaims() }) // as after the lease of a process that renews no more
		waits.ends(0, 0, true, "", pause)
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("it followed after %v; want the look after the claim has lapsed", took)
		}
	})
}

// Records that cannot be written take nothing from the command.
func TestARunWithoutItsRecordSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		j := daily(t, store, 0)
		away := func() {
			store.Intercept(func(memstore.Request) memstore.Fault { return memstore.Unreachable })
		}
		got, ran := j.recorded(t.Context(), j.records, 7, pause, logger{func(line string) { j.said = append(j.said, line) }, "k"}, func() int {
			away()
			return 0
		})
		if text := strings.Join(j.said, "\n"); got != 0 || !ran || !strings.Contains(text, `the last run of "k" is not kept`) {
			t.Errorf("status %d, ran %v, and it said %q; want the status of the command, and that its run is not kept", got, ran, text)
		}
		daily(t, store, 0).ends(0, StatusUnavailable, false, `the runs of "k" cannot be read`, pause)
	})
}
