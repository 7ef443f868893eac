//go:build long

package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/internal/redistest"
)

// brief is a small version of what the program does.
var brief = size{processes: 160, servers: 4, warm: 3 * time.Second, window: 3 * time.Second}

// check demands what does not depend on how busy the machine is, and of the rest
// that it is of the right order.
func check(t *testing.T, rows []row) {
	t.Helper()
	compared := 0
	for _, r := range rows {
		if math.IsNaN(r.model) {
			continue
		}
		compared++
		if r.tolerance > exactly {
			r.tolerance = 2
		}
		if r.off() || r.model > 0 && r.measured <= 0 {
			t.Errorf("%s: %s is %s by the model and %s measured", r.workload, r.what, number(r.model), number(r.measured))
		}
	}
	if compared < 2 {
		t.Errorf("only %d rows were compared", compared)
	}
}

func TestTheModelHoldsInASimulation(t *testing.T) {
	var tab table
	sim := simulation{brief, t.Context(), &tab}
	err := errors.Join(sim.uncontended(), sim.waiting(40), sim.shortTurns(), sim.fullTurns(4))
	if err != nil {
		t.Fatal(err)
	}
	check(t, tab.rows)
}

func TestTheModelHoldsOnARealServer(t *testing.T) {
	var tab table
	err := measureOn(t.Context(), &tab, brief, 0, 0, func(c *calibration) error {
		return errors.Join(c.cells(workload{processes: 2, callers: 1}), c.records())
	})
	if err != nil {
		t.Fatal(err)
	}
	check(t, tab.rows)
}

// TestAServerInMemoryDoesWhatTheScriptsDo sends the same requests to both, and
// compares what they answer and how many commands they have run.
func TestAServerInMemoryDoesWhatTheScriptsDo(t *testing.T) {
	srv := redistest.Start(t)
	onRedis, err := redisstore.New(srv.Client(t), redisstore.Timeout(30*time.Second)) // nothing is sent twice
	if err != nil {
		t.Fatal(err)
	}
	defer onRedis.Close()
	servers := newCluster(1)
	both := []core.Store{servers.store(), onRedis}
	ids := make([]string, 80) // more than a list has room for
	for i := range ids {
		ids[i] = fmt.Sprintf("%032x", i)
	}
	const seed = 1
	random := rand.New(rand.NewPCG(seed, seed))
	for i := range 400 {
		id, key := ids[random.IntN(len(ids))], fmt.Sprint("k", random.IntN(2))
		owner := id + ":1"
		if i%16 != 0 || random.IntN(2) == 0 {
			owner = id[:31] + "x:1" // the one owner that is named twice
		}
		what, remember := random.IntN(10), random.IntN(2) == 0
		answers := make([]string, len(both))
		for k, s := range both {
			answers[k] = request(t.Context(), s, what, key, owner, id, remember)
		}
		if answers[0] != answers[1] {
			t.Fatalf("request %d, %d of %s for %s: %q in memory, %q of Redis", i, what, id, key, answers[0], answers[1])
		}
	}
	var commands int64
	for name, n := range srv.Calls(t) {
		switch name {
		case "script|load", "hello", "ping": // of connections
		case "eval":
			commands -= n // of connections, with one command in each call
		default:
			commands += n
		}
	}
	if counted := int64(servers.counted().commands); counted != commands {
		t.Errorf("%d commands in memory, %d by Redis: %v", counted, commands, srv.Calls(t))
	}
}

// request makes one request and says what became of it.
func request(ctx context.Context, s core.Store, what int, key, owner, id string, remember bool) string {
	const ttl = time.Hour
	switch {
	case what < 7:
		rep, err := s.Acquire(ctx, driver.AcquireRequest{
			Key: key, Owner: owner, TTL: ttl, Waiter: id, Rest: "", Late: func(driver.Reply, error) {},
		})
		return fmt.Sprint(rep.Granted, rep.Token > 0, rep.Holder, rep.Listed, err)
	case what < 8:
		_, err := s.Release(ctx, driver.ReleaseRequest{
			Key: key, Owner: owner, Token: time.Now().UnixMicro(), TTL: ttl, Remember: remember, Waiter: id,
			Deadline: time.Now().Add(10 * time.Second),
		})
		return fmt.Sprint("released ", errors.Is(err, driver.ErrNotOwner), err == nil)
	default:
		var answer string
		s.Renew(ctx, []driver.Renewal{{Key: key, Owner: owner, TTL: ttl, Asked: true}}, func(_ int, contended bool, err error) {
			answer = fmt.Sprint("renewed ", contended, errors.Is(err, driver.ErrNotOwner), err == nil)
		})
		return answer
	}
}
