//go:build long && unix

package faults

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/internal/redistest"
)

var ticketCount = flag.Int("tickets", 20_000, "how many `tickets` TestTicketsAreTakenOverOnceWhateverBecomesOfWorkers hands over")

const (
	workerKind  = "worker"
	workerLease = 400 * time.Millisecond
	workers     = 4
	ticketKeys  = 24
	// longestKept is the longest time for which a lock is kept for a worker.
	longestKept = 400 * time.Millisecond
)

// trusted is a line of a worker: an instant at which a lease was valid, or what became of a ticket.
type trusted struct {
	Ticket int64 // its token
	Key    string
	Token  int64
	At     time.Time
	Error  string // why a ticket was not taken over: taken, ran out, or another text
}

// childWorks takes over the lock of each ticket that comes as a line.
func childWorks(l *core.Locker, line func() (string, bool)) {
	var mu sync.Mutex
	tell := func(r trusted) {
		mu.Lock()
		defer mu.Unlock()
		if err := json.NewEncoder(os.Stdout).Encode(r); err != nil {
			panic(err)
		}
	}
	var all sync.WaitGroup
	defer all.Wait()
	for text, ok := line(); ok; text, ok = line() {
		all.Go(func() {
			ticket, err := core.ParseTicket(text)
			if err != nil {
				tell(trusted{Error: err.Error()})
				return
			}
			r := trusted{Ticket: ticket.Token(), Key: ticket.Key()}
			lease, err := l.TakeOver(context.Background(), ticket, core.Watchdog(workerLease))
			switch {
			case errors.Is(err, core.ErrTicketTaken):
				r.Error = "taken"
			case errors.Is(err, core.ErrTicketRanOut):
				r.Error = "ran out"
			case errors.Is(err, core.ErrUnavailable):
				r.Error = "unavailable"
			case err != nil:
				r.Error = err.Error()
			}
			if err != nil {
				tell(r)
				return
			}
			for r.Token = lease.Token(); rand.IntN(8) > 0; time.Sleep(time.Duration(rand.IntN(2000)) * time.Microsecond) {
				if now := time.Now(); lease.Err() == nil {
					r.At = now
					tell(r)
				}
			}
			_ = lease.Release(context.Background())
		})
	}
}

// desk hands locks over to workers, and notes who had which lock when.
type desk struct {
	*scene
	addr string
	mu   sync.Mutex
	team []*process
	held map[string]map[int64][2]time.Time // by key and token: the first and the last instant at which the lease was valid
	took map[int64]map[int64]bool          // by ticket: the tokens of its takers
	says map[string]int
}

func (d *desk) note(r trusted) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if r.Error != "" {
		d.says[r.Error]++
		return
	}
	if r.Ticket != 0 {
		if d.took[r.Ticket] == nil {
			d.took[r.Ticket] = map[int64]bool{}
		}
		d.took[r.Ticket][r.Token] = true
	}
	if d.held[r.Key] == nil {
		d.held[r.Key] = map[int64][2]time.Time{}
	}
	at, known := d.held[r.Key][r.Token]
	if !known || r.At.Before(at[0]) {
		at[0] = r.At
	}
	if r.At.After(at[1]) {
		at[1] = r.At
	}
	d.held[r.Key][r.Token] = at
}

// hire starts a worker in a place of the team.
func (d *desk) hire(i int) {
	p := d.spawn(d.addr, kindEnv+"="+workerKind)
	go func() {
		for p.out.Scan() {
			var r trusted
			if json.Unmarshal(p.out.Bytes(), &r) == nil { // the last line of a killed process may be cut
				d.note(r)
			}
		}
	}()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.team[i] = p
}

// deliver sends a message to a worker, which may be stopped or dead.
func (d *desk) deliver(ticket core.Ticket) {
	d.mu.Lock()
	p := d.team[rand.IntN(len(d.team))]
	d.mu.Unlock()
	_, _ = fmt.Fprintln(p.in, ticket.Text())
}

// trouble kills and stops workers until the end.
func (d *desk) trouble(over *atomic.Bool) (killed, stopped int) {
	for !over.Load() {
		time.Sleep(time.Duration(50+rand.IntN(200)) * time.Millisecond)
		i := rand.IntN(len(d.team))
		p := d.team[i] // only this goroutine changes the team
		if rand.IntN(2) == 0 {
			killed++
			_ = p.cmd.Process.Signal(syscall.SIGKILL)
			d.hire(i)
			continue
		}
		stopped++
		_ = p.cmd.Process.Signal(syscall.SIGSTOP)
		time.Sleep(time.Duration(rand.IntN(1000)) * time.Millisecond)
		_ = p.cmd.Process.Signal(syscall.SIGCONT)
	}
	return killed, stopped
}

// Workers are killed and stopped, each message is delivered one to three times, and some tickets run out.
func TestTicketsAreTakenOverOnceWhateverBecomesOfWorkers(t *testing.T) {
	s := stageAlone(t)
	srv := redistest.Start(t)
	rdb := srv.Client(t)
	l := s.locker(srv.Client(t))
	d := &desk{
		scene: s, addr: srv.Addr(), team: make([]*process, workers), held: map[string]map[int64][2]time.Time{},
		took: map[int64]map[int64]bool{}, says: map[string]int{},
	}
	for i := range d.team {
		d.hire(i)
	}
	var over atomic.Bool
	ended := make(chan [2]int)
	go func() {
		killed, stopped := d.trouble(&over)
		ended <- [2]int{killed, stopped}
	}()
	var made, kept atomic.Int64
	var all sync.WaitGroup
	for i := range ticketKeys {
		all.Go(func() {
			key := "k" + strconv.Itoa(i)
			for made.Add(1) <= int64(*ticketCount) {
				lease, err := l.Lock(t.Context(), key)
				if err != nil {
					t.Error(err)
					return
				}
				if a := holding(lease); a.Lost == "" {
					d.note(trusted{Key: key, Token: a.Token, At: a.Trusted})
				}
				ticket, err := lease.HandOver(t.Context(), 20*time.Millisecond+rand.N(longestKept-20*time.Millisecond))
				_ = lease.Release(t.Context())
				switch {
				case errors.Is(err, core.ErrUnavailable), errors.Is(err, core.ErrLost): // a machine that stands still
					d.note(trusted{Error: "not handed over"})
					continue
				case err != nil:
					t.Errorf("HandOver: %v", err)
					continue
				}
				kept.Add(1)
				if left := rdb.PTTL(t.Context(), "interlock:{"+key+"}").Val(); left > longestKept {
					t.Errorf("%s is kept for %v; it was handed over for at most %v", key, left, longestKept)
				}
				for range 1 + rand.IntN(3) {
					d.deliver(ticket)
				}
			}
		})
	}
	all.Wait()
	over.Store(true)
	troubles := <-ended
	for i := range ticketKeys { // nothing is left longer than its time
		key := "k" + strconv.Itoa(i)
		if left := rdb.PTTL(t.Context(), "interlock:{"+key+"}").Val(); left > max(longestKept, workerLease) {
			t.Errorf("%s is held for %v yet", key, left)
		}
		s.release(s.must(l, key))
	}
	d.judge(troubles)
	t.Logf("%d tickets; %d workers were killed and %d stopped; of deliveries: %v", kept.Load(), troubles[0], troubles[1], d.says)
}

// judge compares all holders of each key.
func (d *desk) judge(troubles [2]int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for key, grants := range d.held {
		tokens := slices.Sorted(maps.Keys(grants))
		for i, token := range tokens[1:] {
			if before := grants[tokens[i]]; !before[1].Before(grants[token][0]) {
				d.Errorf("%s: the lease with token %d was valid until %v, and the lease with %d from %v",
					key, tokens[i], before[1], token, grants[token][0])
			}
		}
	}
	for what, n := range d.says {
		if !slices.Contains([]string{"taken", "ran out", "unavailable", "not handed over"}, what) {
			d.Errorf("%d times: %s", n, what)
		}
	}
	taken := 0
	for ticket, takers := range d.took {
		if taken++; len(takers) > 1 {
			d.Errorf("the ticket %d was taken over %d times", ticket, len(takers))
		}
	}
	if n := *ticketCount; n >= 1000 && (d.says["not handed over"] > n/10 || taken < n/10 || d.says["taken"] < n/20 || d.says["ran out"] < n/200 || troubles[0] < 3 || troubles[1] < 3) {
		d.Errorf("the test shows little: %d tickets were taken over; %v", taken, d.says)
	}
}
