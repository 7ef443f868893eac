//go:build long

package postgres_test

import (
	"context"
	"database/sql"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/interlock-go/interlock/internal/redistest"
	"github.com/interlock-go/interlock/trust/internal/pgtest"
)

// paymentsFlag is how many payments TestKills makes of each variant.
var paymentsFlag = flag.Int("payments", 0, "`number` of payments of each variant; 0: a short run")

const (
	processes = 3
	clients   = 16
	// claimLease is the lease of claims. Processes are stopped for longer.
	claimLease = time.Second
)

// variant is a way to make a payment.
type variant struct {
	name string
	// right says that each payment is made once, and none is of unknown outcome. The
	// others have to show that the faults do harm.
	right bool
}

// variants are, of PostgreSQL: the transaction of the request, likewise with a job that has the
// claim, and a separate transaction of the handler. Of Redis: the record there, and the effect marked. And an endpoint
// without records.
var variants = []variant{
	{inTransaction, true}, {byJob, true}, {ownTransaction, false}, {onRedis, false}, {onRedisMarked, false}, {bare, false},
}

// tally counts the outcomes of the payments of a variant.
type tally struct {
	answered, unknown, givenUp int
	twice, missing             int // of the answered payments, in the ledger
	kills, aborts, cuts, stops int
	pauses                     int // of Redis
	took                       time.Duration
}

func (c tally) String() string {
	return fmt.Sprintf("%d answered, %d made twice, %d missing, %d of unknown outcome, %d given up; "+
		"%d processes killed, %d stopped, %d connections cut, PostgreSQL killed %d times, Redis paused %d times; %v",
		c.answered, c.twice, c.missing, c.unknown, c.givenUp, c.kills, c.stops, c.cuts, c.aborts, c.pauses, c.took.Round(time.Second))
}

// TestKills has clients make payments, and send each again until it is answered, while
// the processes of the service are killed at every step of a payment and stopped past
// their leases, connections are cut, PostgreSQL is killed, and Redis is paused.
func TestKills(t *testing.T) {
	payments, controls := *paymentsFlag, *paymentsFlag
	if payments == 0 {
		payments, controls = 600, 200
	}
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			if v.right {
				payments := payments
				if v.name == byJob { // which has two requests for each, with more steps
					payments = controls
				}
				c := playKills(t, v.name, payments)
				t.Log(c)
				if c.answered != payments || c.twice+c.missing+c.unknown+c.givenUp > 0 {
					t.Errorf("%d payments: %v", payments, c)
				}
				return
			}
			var c tally
			for range 5 { // faults hit where it hurts only now and then
				c = playKills(t, v.name, controls)
				t.Log(c)
				if c.twice+c.unknown > 0 {
					break
				}
			}
			if v.name == onRedisMarked && c.twice > 0 {
				t.Errorf("marked payments were made twice: %v", c)
			}
			if c.missing > 0 {
				t.Errorf("answered payments were not made: %v", c)
			}
			if c.twice+c.unknown == 0 {
				t.Errorf("the faults did no harm, so that they test nothing: %v", c)
			}
		})
	}
}

// playKills makes payments with one variant.
func playKills(t *testing.T, name string, payments int) (c tally) {
	begin := time.Now()
	server := pgtest.Start(t)
	redis := redistest.Start(t, redistest.Args("--appendonly", "yes", "--appendfsync", "always"))
	db := server.Open(t)
	db.SetMaxOpenConns(4)
	execute(t, db, "CREATE TABLE ledger (payment text, made timestamptz DEFAULT clock_timestamp())")
	execute(t, db, "CREATE TABLE job (ticket text, payment text)")
	migrate(t, newStore(t, db))
	f := &fleet{T: t, orders: orders{Variant: name, DSN: server.DSN(), Redis: redis.Addr(), Crash: crashRate(payments)}}
	f.start()
	defer f.end()

	ctx, stop := context.WithCancel(t.Context())
	var faults sync.WaitGroup
	faults.Go(func() { f.torment(ctx, server, redis, db, &c) })
	var next atomic.Int64
	var mu sync.Mutex
	var answered []string
	var work sync.WaitGroup
	for range clients {
		work.Go(func() {
			for {
				n := int(next.Add(1))
				if n > payments {
					return
				}
				key := "payment-" + strconv.Itoa(n)
				outcome := f.pay(ctx, key)
				mu.Lock()
				switch outcome {
				case paid:
					c.answered++
					answered = append(answered, key)
				case unknown:
					c.unknown++
				default:
					c.givenUp++
				}
				mu.Unlock()
			}
		})
	}
	work.Wait()
	stop()
	faults.Wait()
	f.judge(db, answered, &c)
	c.kills = int(f.kills.Load())
	c.took = time.Since(begin)
	return c
}

// crashRate is how probable it is that a process kills itself at a step, one out of five, of
// a payment: at least a hundred kills in a long run, some in a short one.
func crashRate(payments int) float64 { return min(0.02, max(0.001, 20/float64(payments))) }

// The outcomes of a payment for its client.
const (
	paid = iota
	unknown
	givenUp
)

// fleet are the processes of the service.
type fleet struct {
	*testing.T
	orders orders
	kills  atomic.Int64
	over   atomic.Bool
	slots  [processes]slot
	work   sync.WaitGroup
	client http.Client
}

// slot is the place of a process, which is started again when it dies.
type slot struct {
	mu      sync.Mutex
	process *process
}

func (s *slot) current() *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.process
}

func (f *fleet) start() {
	f.client.Transport = &http.Transport{MaxIdleConnsPerHost: clients}
	f.client.Timeout = 4 * time.Second
	for i := range f.slots {
		s := &f.slots[i]
		p, err := launch(f.orders)
		if err != nil {
			f.Fatal(err)
		}
		s.process = p
		f.work.Go(func() { f.keep(s) })
	}
}

// keep starts the process of a slot again whenever it dies.
func (f *fleet) keep(s *slot) {
	for {
		<-s.current().Done
		if f.over.Load() {
			return
		}
		f.kills.Add(1)
		p, err := launch(f.orders)
		if err != nil {
			f.Error(err)
			return
		}
		s.mu.Lock()
		s.process = p
		s.mu.Unlock()
		if f.over.Load() {
			p.Signal(syscall.SIGKILL)
		}
	}
}

func (f *fleet) end() {
	f.over.Store(true)
	for i := range f.slots {
		f.slots[i].current().Signal(syscall.SIGKILL)
	}
	f.work.Wait()
	f.client.CloseIdleConnections()
}

// torment injects faults until ctx ends.
func (f *fleet) torment(ctx context.Context, server *pgtest.Server, redis *redistest.Server, db *sql.DB, c *tally) {
	rng := rand.New(rand.NewPCG(rand.Uint64(), 0))
	for n := 1; sleep(ctx, time.Duration(100+rng.IntN(400))*time.Millisecond); n++ {
		p := f.slots[rng.IntN(processes)].current()
		switch {
		case n%25 == 10:
			c.aborts++
			server.Abort(f)
			sleep(ctx, time.Duration(rng.IntN(300))*time.Millisecond)
			server.Restart(f)
		case n%25 == 17:
			c.pauses++
			redis.Pause(f)
			sleep(ctx, time.Duration(20+rng.IntN(1480))*time.Millisecond)
			redis.Resume(f)
		case n%5 == 0:
			c.stops++
			p.Signal(syscall.SIGSTOP)
			sleep(ctx, claimLease+time.Duration(rng.IntN(1000))*time.Millisecond)
			p.Signal(syscall.SIGCONT)
		case n%2 == 0:
			p.Signal(syscall.SIGKILL)
		default:
			// Of one process in three its connections.
			_, err := db.ExecContext(ctx, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "+
				"WHERE application_name = 'payments' AND pid % 3 = $1::int", rng.IntN(3))
			if err == nil {
				c.cuts++
			}
		}
	}
}

// sleep reports whether ctx has not ended.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// pay makes a payment: it sends the request to one process after the other until it is
// answered.
func (f *fleet) pay(ctx context.Context, key string) int {
	for end := time.Now().Add(time.Minute); time.Now().Before(end); sleep(ctx, time.Duration(10+rand.IntN(40))*time.Millisecond) {
		p := f.slots[rand.IntN(processes)].current()
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+p.addr+"/payments", strings.NewReader(key))
		if err != nil {
			f.Error(err)
			return givenUp
		}
		req.Header.Set("Idempotency-Key", key)
		resp, err := f.client.Do(req)
		if err != nil {
			continue
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		switch {
		case err != nil, resp.StatusCode == http.StatusAccepted && f.orders.Variant == byJob:
		case resp.StatusCode == http.StatusOK && string(body) == "paid "+key:
			return paid
		case strings.Contains(string(body), "idempotency-outcome-unknown"),
			resp.StatusCode == http.StatusInternalServerError && resp.Header.Get("Idempotent-Replayed") != "":
			return unknown // the latter after a mark: every duplicate gets the failure
		case resp.StatusCode != http.StatusInternalServerError && resp.StatusCode != http.StatusServiceUnavailable &&
			resp.StatusCode != http.StatusConflict:
			f.Errorf("%s: status %d, %.200q", key, resp.StatusCode, body)
			return givenUp
		}
	}
	return givenUp
}

// judge compares the ledger with the answers.
func (f *fleet) judge(db *sql.DB, answered []string, c *tally) {
	rows, err := db.QueryContext(f.Context(), "SELECT payment, count(*) FROM ledger GROUP BY payment")
	if err != nil {
		f.Fatal(err)
	}
	defer rows.Close()
	made := make(map[string]int)
	for rows.Next() {
		var key string
		var n int
		if err := rows.Scan(&key, &n); err != nil {
			f.Fatal(err)
		}
		made[key] = n
		if n > 1 {
			c.twice++
		}
	}
	if err := rows.Err(); err != nil {
		f.Fatal(err)
	}
	for _, key := range answered {
		if made[key] == 0 {
			c.missing++
		}
	}
}
