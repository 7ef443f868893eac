//go:build long && unix

package examples

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/internal/redistest"
	"github.com/interlock-go/interlock/trust/internal/child"
	"github.com/interlock-go/interlock/trust/internal/faultnet"
	"github.com/interlock-go/interlock/trust/internal/pgtest"
)

// All three services are killed and stopped, answers are lost, and messages are delivered up to
// three times.
func TestAPaymentAcrossServicesIsMadeOnce(t *testing.T) {
	c := cross(t, 2000)
	if c.doubles > 0 || c.missing > 0 || c.unreported > 0 {
		t.Errorf("%d bookings were made more than once, %d were not made, %d were made although their payment was reported as not made: want none",
			c.doubles, c.missing, c.unreported)
	}
	if n := c.db.number("SELECT count(*) FROM interlock_record WHERE state <> 'd'"); n > 0 {
		t.Errorf("%d records are left without a final answer", n)
	}
	c.free()
}

// The test above can fail: without the derivation of keys the same faults make payments twice.
func TestAPaymentAcrossServicesIsMadeTwiceWithRandomKeys(t *testing.T) {
	if c := cross(t, 300, "-random-keys"); c.doubles == 0 {
		t.Error("no booking was made twice: the faults of this test prove nothing")
	}
}

const (
	payers  = 100
	funds   = 1_000_000 // of each payer at the start
	keeps   = 3 * time.Second
	leaseIs = 2 * time.Second
)

// crossing is a run of the three services under faults, with its result.
type crossing struct {
	*testing.T
	program string
	args    []string
	db      database
	rdb     *redis.Client
	gateway string // the URL, through a proxy
	kills   atomic.Int64
	pauses  atomic.Int64
	strikes chan struct{} // one for the service that receives it
	points  sync.Map      // of the points of -kill to their number

	doubles, missing, unreported int
}

// order is a payment of a client.
type order struct {
	id, from, to string
	amount       int
	declined     bool // the client's answer
}

// cross makes payments under faults. args are for all services.
func cross(t *testing.T, payments int, args ...string) *crossing {
	t.Helper()
	dsn := pgtest.DSN(t)
	server := redistest.Start(t)
	c := &crossing{T: t, program: build(t, "../../examples/across", "."), db: connect(t, dsn), rdb: server.Client(t), strikes: make(chan struct{})}
	c.tables()
	gateway, ledger := claim(t), claim(t)
	clients, services := faultnet.NewProxy(t, gateway), faultnet.NewProxy(t, ledger)
	clients.LoseAnswers(40)
	services.LoseAnswers(100)
	c.gateway = "http://" + clients.Addr()
	c.args = append(args, "-postgres", dsn+" pool_max_conns=20", "-redis", server.Addr(), "-lease", leaseIs.String(), "-keep", keeps.String())

	faults, end := context.WithCancel(t.Context())
	over, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	defer end()
	for role, points := range map[string][]string{
		"gateway":  {"debited", "handed over", "answered"},
		"ledger":   {"booked"},
		"consumer": {"taken over", "credited", "finished"},
	} {
		at := services.Addr()
		if role == "ledger" {
			at = ledger
		}
		running.Go(func() { c.keep(faults, over, points, "-role", role, "-addr", gateway, "-ledger", at) })
	}

	orders := c.pay(payments)
	end()
	c.await("all messages are done", func() bool { return c.db.number("SELECT count(*) FROM message") == 0 })
	stop()
	running.Wait()
	c.count(orders)
	c.Logf("%d payments; %d kills, %v of them at points, and %d pauses; %d answers of the gateway and %d of the ledger lost; %d messages, delivered %d times",
		payments, c.kills.Load(), c.killed(), c.pauses.Load(), clients.Lost(), services.Lost(),
		c.db.number("SELECT last_value FROM original"), c.db.number("SELECT last_value FROM delivery"))
	c.Logf("%d bookings made more than once, %d not made, %d of payments that were reported as not made", c.doubles, c.missing, c.unreported)
	return c
}

// claim returns an address for a service that is restarted: below the range of ports that the
// system gives to connections.
func claim(t *testing.T) string {
	t.Helper()
	for {
		addr := fmt.Sprintf("127.0.0.1:%d", 10000+rand.N(5000))
		if l, err := net.Listen("tcp", addr); err == nil {
			_ = l.Close()
			return addr
		}
	}
}

// tables makes the tables of the services, and accounts. Each message of the gateway comes one to
// three times.
func (c *crossing) tables() {
	c.Helper()
	schema, err := os.ReadFile("../../examples/across/schema.sql")
	if err != nil {
		c.Fatal(err)
	}
	for _, statement := range []string{
		string(schema),
		fmt.Sprintf("INSERT INTO account SELECT 'payer' || n, %d FROM generate_series(0, %d) n", funds, payers-1),
		"CREATE SEQUENCE original MINVALUE 0; CREATE SEQUENCE delivery MINVALUE 0",
		`CREATE FUNCTION copied() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			PERFORM nextval('original');
			INSERT INTO message (body, due) SELECT NEW.body, now() + random() * interval '300 ms' FROM generate_series(1, floor(random() * 3)::int);
			RETURN NULL;
		END $$`,
		`CREATE FUNCTION delivered() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM nextval('delivery'); RETURN NEW; END $$`,
		"CREATE TRIGGER copied AFTER INSERT ON message FOR EACH ROW WHEN (pg_trigger_depth() = 0) EXECUTE FUNCTION copied()",
		"CREATE TRIGGER delivered BEFORE UPDATE ON message FOR EACH ROW EXECUTE FUNCTION delivered()",
	} {
		if _, err := c.db.ExecContext(c.Context(), statement); err != nil {
			c.Fatal(err)
		}
	}
}

// keep runs a service again and again until faults ends. It is killed at a point, or when a client
// has an answer: so the number of kills does not depend on the speed of the machine. From then on
// it runs until over.
func (c *crossing) keep(faults, over context.Context, points []string, args ...string) {
	name := args[1]
	log, err := os.Create(filepath.Join(c.TempDir(), name+".log"))
	if err != nil {
		c.Error(err)
		return
	}
	defer func() {
		_ = log.Close()
		if c.Failed() {
			b, _ := os.ReadFile(log.Name())
			c.Logf("the %s said at last:\n%s", name, b[max(0, len(b)-4000):])
		}
	}()
	for over.Err() == nil {
		now, point := over, ""
		if faults.Err() == nil {
			now = faults
			if rand.N(3) == 0 {
				point = points[rand.N(len(points))]
			}
		}
		run := slices.Concat(args, c.args, []string{"-kill", point})
		cmd := exec.Command(c.program, run...)
		cmd.Stdout, cmd.Stderr = log, log
		p, err := child.Start(cmd, syscall.SIGKILL)
		if err != nil {
			c.Error(err)
			return
		}
		select {
		case <-p.Done:
			if p.ProcessState.ExitCode() >= 0 { // no signal
				c.Errorf("the %s ended: %v", name, p.ProcessState)
				return
			}
			n, _ := c.points.LoadOrStore(point, new(atomic.Int64))
			n.(*atomic.Int64).Add(1)
			c.kills.Add(1)
		case <-c.strikes:
			if rand.N(6) == 0 { // it wakes up after its leases
				p.Signal(syscall.SIGSTOP)
				time.Sleep(leaseIs + time.Second)
				p.Signal(syscall.SIGCONT)
				c.pauses.Add(1)
				time.Sleep(time.Second)
			}
			p.Kill()
			c.kills.Add(1)
		case <-now.Done():
			c.stop(name, p)
		}
	}
}

// stop asks a service to end.
func (c *crossing) stop(name string, p *child.Process) {
	p.Signal(syscall.SIGTERM)
	select {
	case <-p.Done:
		if !p.ProcessState.Success() && p.ProcessState.ExitCode() >= 0 {
			c.Errorf("the %s ended with %v when it was asked to", name, p.ProcessState)
		}
	case <-time.After(patience):
		p.Kill()
		c.Errorf("the %s did not end", name)
	}
}

func (c *crossing) killed() map[string]int64 {
	at := make(map[string]int64)
	c.points.Range(func(point, n any) bool {
		at[point.(string)] = n.(*atomic.Int64).Load()
		return true
	})
	return at
}

// pay sends payments until each has its final answer. One in twenty is of more than the payer has.
func (c *crossing) pay(payments int) []order {
	orders := make([]order, payments)
	var next atomic.Int64
	var clients sync.WaitGroup
	for range 64 {
		clients.Go(func() {
			http := &http.Client{Timeout: 10 * time.Second, Transport: new(http.Transport)}
			defer http.CloseIdleConnections()
			for i := next.Add(1) - 1; i < int64(payments) && !c.Failed(); i = next.Add(1) - 1 {
				o := &orders[i]
				from := rand.N(payers)
				*o = order{
					id: fmt.Sprintf("p%d", i), amount: 1 + rand.N(9),
					from: fmt.Sprintf("payer%d", from), to: fmt.Sprintf("payer%d", (from+1+rand.N(payers-1))%payers),
				}
				if rand.N(20) == 0 {
					o.amount = funds*payers + 1
				}
				c.insist(http, o)
				if rand.N(20) == 0 {
					select {
					case c.strikes <- struct{}{}:
					default: // all services start, or pause
					}
				}
			}
		})
	}
	clients.Wait()
	return orders
}

// insist sends a payment with its key, until the answer is final.
func (c *crossing) insist(client *http.Client, o *order) {
	url := c.gateway + "/accounts/" + o.from + "/payments"
	looks := rand.N(2) == 0 // after a 202
	method, where := http.MethodPost, url
	var seen []string
	for end := time.Now().Add(2 * patience); time.Now().Before(end); time.Sleep(50*time.Millisecond + rand.N(200*time.Millisecond)) {
		status, body, err := o.send(client, method, where)
		seen = append(seen, fmt.Sprintf("%s %d", method, status))
		switch {
		case err != nil, status >= 500, status == http.StatusConflict, status == http.StatusLocked:
		case status == http.StatusAccepted && looks:
			method, where = http.MethodGet, url+"/"+o.id
		case status == http.StatusAccepted:
		case status == http.StatusNotFound && method == http.MethodGet: // it is not under way any more
			method, where = http.MethodPost, url
		case status == http.StatusCreated && body == "payment "+o.id:
			return
		case status == http.StatusForbidden:
			o.declined = true
			return
		default:
			c.Errorf("%s %s got %d %q; want 201, 202 or 403", method, where, status, body)
			return
		}
	}
	c.Errorf("never: a final answer to payment %s of %s: %v", o.id, o.from, slices.Compact(seen))
}

// send sends one request for a payment.
func (o *order) send(client *http.Client, method, url string) (status int, body string, err error) {
	content, err := json.Marshal(map[string]any{"to": o.to, "amount": o.amount})
	if err != nil {
		return 0, "", err
	}
	r, err := http.NewRequestWithContext(context.Background(), method, url, strings.NewReader(string(content)))
	if err != nil {
		return 0, "", err
	}
	r.Header.Set("Idempotency-Key", o.id)
	res, err := client.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	return res.StatusCode, strings.TrimSpace(string(b)), err
}

// booking is a row of the ledger.
type booking struct {
	payment, account string
	amount           int
}

// count compares the ledger with the answers of the clients.
func (c *crossing) count(orders []order) {
	made, balances := c.booked()
	for _, o := range orders {
		if o.declined != (o.amount > funds*payers) {
			c.Errorf("a payment of %d was declined: %v", o.amount, o.declined)
		}
		for _, b := range []booking{{o.id, o.from, -o.amount}, {o.id, o.to, o.amount}} {
			n := made[b]
			delete(made, b)
			switch {
			case o.declined && n > 0:
				c.unreported++
			case n == 0 && !o.declined:
				c.missing++
			case n > 1:
				c.doubles++
			}
			balances[b.account] -= n * b.amount
		}
	}
	if len(made) > 0 {
		c.Errorf("bookings of no payment: %v", made)
	}
	for account, balance := range balances {
		if balance != funds {
			c.Errorf("the balance of %s is not the sum of its bookings: %d too much", account, balance-funds)
		}
	}
}

// booked returns how often each booking was made, and the balances.
func (c *crossing) booked() (made map[booking]int, balances map[string]int) {
	made, balances = make(map[booking]int), make(map[string]int)
	rows, err := c.db.QueryContext(c.Context(), `SELECT payment, account, amount, count(*) FROM booking GROUP BY 1, 2, 3
		UNION ALL SELECT '', id, balance, 0 FROM account WHERE id LIKE 'payer%'`)
	if err != nil {
		c.Fatal(err)
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var b booking
		var n int
		if err := rows.Scan(&b.payment, &b.account, &b.amount, &n); err != nil {
			c.Fatal(err)
		}
		if b.payment == "" {
			balances[b.account] = b.amount
		} else {
			made[b] = n
		}
	}
	if err := rows.Err(); err != nil {
		c.Fatal(err)
	}
	return made, balances
}

// free checks that no lock is left for longer than its time.
func (c *crossing) free() {
	c.Helper()
	c.await("all locks are free", func() bool {
		held := 0
		for n := range payers {
			left, err := c.rdb.PTTL(c.Context(), fmt.Sprintf("interlock:{account/payer%d}", n)).Result()
			if err != nil {
				c.Fatal(err)
			}
			if left > max(keeps, leaseIs) || left == -1 {
				c.Fatalf("a lock is left for %v", left)
			}
			if left > 0 {
				held++
			}
		}
		return held == 0
	})
}

// await waits until something holds.
func (c *crossing) await(what string, holds func() bool) {
	c.Helper()
	for end := time.Now().Add(patience); !holds(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			c.Fatalf("never: %s", what)
		}
	}
}
