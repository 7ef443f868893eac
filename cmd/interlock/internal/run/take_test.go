package run

import (
	"context"
	"crypto/tls"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/casstore"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/memstore"
)

// A restart of the server takes a second. A wait that ends at the first refused connection
// fails every job that begins in that second.
func TestAWaitOutlastsAServerThatIsAway(t *testing.T) {
	refusal := memstore.Fault{Err: driver.ErrUnavailable}
	lasting := memstore.Fault{Err: errors.Join(driver.ErrUnavailable, reply("OOM command not allowed"))}
	password := memstore.Fault{Err: errors.Join(driver.ErrUnavailable, state("28P01"))}
	table := memstore.Fault{Err: errors.Join(driver.ErrUnavailable, state("42P01"))}
	starting := memstore.Fault{Err: errors.Join(driver.ErrUnavailable, state("57P03"))}
	right := memstore.Fault{Err: errors.Join(driver.ErrUnavailable, casstore.ErrRefused)}
	certificate := memstore.Fault{Err: errors.Join(driver.ErrUnavailable, &tls.CertificateVerificationError{Err: errors.New("unknown authority")})}
	replicas := memstore.Fault{Err: driver.ErrNotReplicated}
	for name, c := range map[string]struct {
		wait, away, want time.Duration // how long run waits, the server is away, and run takes
		fault            memstore.Fault
		err              error
		says             int
	}{
		"it comes back":                     {wait: 15 * time.Second, away: 3 * time.Second, want: 3 * time.Second, fault: refusal, says: 1},
		"it does not come back":             {wait: 15 * time.Second, away: time.Hour, want: 15 * time.Second, fault: refusal, err: driver.ErrUnavailable, says: 1},
		"without a bound it comes back":     {wait: forever, away: 50 * time.Second, want: 50 * time.Second, fault: refusal, says: 2},
		"without a bound it does not":       {wait: forever, away: time.Hour, want: awayWait, fault: refusal, err: driver.ErrUnavailable, says: 2},
		"a single try":                      {wait: 0, away: 3 * time.Second, want: 0, fault: refusal, err: driver.ErrUnavailable},
		"its replicas come back":            {wait: 15 * time.Second, away: 3 * time.Second, want: 3 * time.Second, fault: replicas, says: 1},
		"it refuses, and would always":      {wait: 15 * time.Second, away: time.Hour, want: 0, fault: lasting, err: driver.ErrUnavailable},
		"a wrong password of PostgreSQL":    {wait: 15 * time.Second, away: time.Hour, want: 0, fault: password, err: driver.ErrUnavailable},
		"a missing table of PostgreSQL":     {wait: forever, away: time.Hour, want: 0, fault: table, err: driver.ErrUnavailable},
		"PostgreSQL starts":                 {wait: 15 * time.Second, away: 3 * time.Second, want: 3 * time.Second, fault: starting, says: 1},
		"a missing right of etcd":           {wait: 15 * time.Second, away: time.Hour, want: 0, fault: right, err: driver.ErrUnavailable},
		"a certificate that is not trusted": {wait: 15 * time.Second, away: time.Hour, want: 0, fault: certificate, err: driver.ErrUnavailable},
		"without a bound it refuses always": {wait: forever, away: time.Hour, want: 0, fault: lasting, err: driver.ErrUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := memstore.New()
				store.Intercept(func(memstore.Request) memstore.Fault { return c.fault })
				time.AfterFunc(c.away, func() { store.Intercept(nil) })
				locker, err := core.New(store)
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = locker.Close(context.Background()) }()
				var said []string
				cmd := &Command{key: key, wait: c.wait, ttl: defaultTTL}
				began := time.Now()
				lease, err := cmd.take(t.Context(), locker, Streams{}, logger{func(line string) { said = append(said, line) }, key})
				if took := time.Since(began); took < c.want-2*maxPause || took > c.want+2*maxPause {
					t.Errorf("it took %v; want about %v", took, c.want)
				}
				if !errors.Is(err, c.err) || (lease == nil) == (c.err == nil) {
					t.Errorf("lease %v, error %v; want error %v", lease, err, c.err)
				}
				if len(said) != c.says || c.says > 0 && !strings.Contains(said[0], "cannot be asked for") {
					t.Errorf("it said %q; want %d lines", said, c.says)
				}
				if lease != nil {
					_ = lease.Release(t.Context())
				}
			})
		})
	}
}

// state is an error of PostgreSQL.
type state string

func (s state) Error() string    { return string(s) }
func (s state) SQLState() string { return string(s) }

// reply is an error that a server returned.
type reply string

func (r reply) Error() string { return string(r) }
func (reply) RedisError()     {}

var _ redis.Error = reply("")

// Messages of a wrapper that waits appear while it waits.
func TestAVoiceSpeaksBeforeTheCommandBegins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said []string
		v := NewVoice(func(line string) { said = append(said, line) })
		var background atomic.Bool
		background.Store(true)
		go v.listen(func() bool { return !background.Load() })
		v.say("one")
		synctest.Wait()
		if len(said) != 0 {
			t.Errorf("%q was said on a terminal from the background", said)
		}
		background.Store(false)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if len(said) != 1 {
			t.Errorf("%q were said in the foreground; want one line", said)
		}
		background.Store(true)
		speak := v.hush()
		v.say("two")
		synctest.Wait()
		if len(said) != 1 {
			t.Errorf("%q were said while the command was started", said)
		}
		speak()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if len(said) != 2 {
			t.Errorf("%q were said when the command had begun; want two lines", said)
		}
		v.say("three")
		v.finish()
		if len(said) != 3 {
			t.Errorf("%q were said in the end; want three lines", said)
		}
	})
}
