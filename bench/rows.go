package main

import (
	"fmt"
	"strings"
	"time"
)

// The libraries, by the names in the report.
const (
	interlock   = "interlock"
	redsync     = "redsync"
	redislock   = "redislock"
	rueidislock = "rueidislock"
	channel     = "channel"
)

var peers = []string{redsync, redislock, rueidislock}

// row is a workload.
type row struct {
	name      string
	title     string
	kind      func(*child) // work of a process; see work.go
	libraries []string
	processes int
	workers   int // goroutines of each process, or locks that it holds
	keys      int
	work      time.Duration // in the section
	lease     time.Duration
	least     time.Duration // the shortest window that shows anything
	once      bool          // too long for every round: the first only, for least or else -hold
	busy      bool          // together with a process that spins; see spin
	far       bool          // the server is a way from its clients (-way); see relay
	columns   []column
	brief     func(*result) string
}

// with is a list of libraries that begins with Interlock.
func with(list []string, more ...string) []string {
	return append(append([]string{interlock}, list...), more...)
}

// defaultLease is Interlock's. All get the same, so that a cell which is slow on a
// busy machine loses no lock.
const defaultLease = 30 * time.Second

// rows are all workloads, in the order of the report.
var rows = []row{
	free("free-1", 1),
	far(free("free-1", 1)),
	busy("free-1-busy", 1),
	free("free-16", 16),
	far(free("free-16", 16)),
	busy("free-16-busy", 16),
	free("free-64", 64),
	far(free("free-64", 64)),
	free("free-256", 256),
	far(free("free-256", 256)),
	hot("one-key-128", 128, 0, 0),
	hot("one-key-1000", 1000, 0, 0),
	hot("one-key-128-1ms", 128, time.Millisecond, 0),
	// 1,000 sections of a millisecond are one turn of all; two turns,
	// or it could not be seen who starves from who has not had a turn yet.
	hot("one-key-1000-1ms", 1000, time.Millisecond, 3*time.Second),
	processes,
	far(processes),
	{
		name: "zipf", title: "256 goroutines, 10,000 keys by Zipf (s = 1.1), 200 µs in the section",
		kind: (*child).sections, libraries: with(peers, channel),
		processes: 1, workers: 256, keys: 10_000, work: 200 * time.Microsecond, lease: defaultLease,
		columns: sectionColumns, brief: briefSections,
	},
	held("held-10000", 10_000, 3*time.Second, 6*time.Second, with(peers), false),
	held("held-100000", 100_000, 30*time.Second, 0, []string{interlock}, true),
	// One key changes hands eight times a second, so a window needs more of them.
	handOver("hand-over-1", 1, 5*time.Second, with(peers)),
	far(handOver("hand-over-1", 1, 5*time.Second, with(peers))),
	handOver("hand-over", 8, 3*time.Second, with(peers)),
	{
		name: "idle", title: "1,000 goroutines of one process wait for a key that another process holds",
		kind: (*child).idle, libraries: with(peers),
		processes: 2, workers: 1000, keys: 1, lease: defaultLease, columns: idleColumns,
		// Two renewals: the first opens a connection, which counts for too much in less. The
		// locks of libraries that do not renew end after the lease.
		least: 20 * time.Second, once: true,
		brief: func(r *result) string { return fmt.Sprintf("%.1f commands/s", commandRate(r)) },
	},
}

// processes is several processes at one key.
var processes = row{
	name: "processes", title: "4 processes of 16 goroutines, one key, empty section",
	kind: (*child).sections, libraries: with(peers),
	processes: 4, workers: 16, keys: 1, lease: defaultLease,
	columns: append(sectionColumns, column{"smallest share of a process", smallestShare, ratio2}),
	brief:   briefSections,
}

// free has no contention: each goroutine has its key.
func free(name string, n int) row {
	s := "s"
	if n == 1 {
		s = ""
	}
	return row{
		name: name, title: fmt.Sprintf("%d goroutine%s, each with its own key, empty section", n, s),
		kind: (*child).sections, libraries: with(peers),
		processes: 1, workers: n, keys: n, lease: defaultLease,
		columns: sectionColumns, brief: briefSections,
	}
}

// busy is free where another process keeps the cores from going to sleep between
// two requests, and takes its share of them.
func busy(name string, n int) row {
	r := free(name, n)
	r.title += ", beside a process that spins"
	r.busy = true
	return r
}

// far is a row with a way between the clients and the server.
func far(r row) row {
	r.name += "-far"
	r.far = true
	return r
}

// hot is all goroutines at one key.
func hot(name string, n int, work, least time.Duration) row {
	inside := "empty section"
	if work > 0 {
		inside = short(work) + " in the section"
	}
	return row{
		name: name, title: fmt.Sprintf("%s goroutines, one key, %s", thousands(n), inside),
		kind: (*child).sections, libraries: with(peers, channel),
		processes: 1, workers: n, keys: 1, work: work, lease: defaultLease, least: least,
		columns: sectionColumns, brief: briefSections,
	}
}

// held is one process that holds many locks and keeps them.
func held(name string, n int, lease, least time.Duration, libraries []string, once bool) row {
	return row{
		name: name, title: fmt.Sprintf("%s locks held by one process, %v lease", thousands(n), lease),
		kind: (*child).hold, libraries: libraries,
		processes: 1, workers: n, keys: n, lease: lease, least: least, once: once,
		columns: heldColumns,
		brief: func(r *result) string {
			return fmt.Sprintf("CPU %.1f %%, %d B, %d lost", cpuShare(r), r.Heap/int64(r.Held), r.Lost)
		},
	}
}

// handOver is two processes that take turns: one waiter for each key.
func handOver(name string, keys int, least time.Duration, libraries []string) row {
	which := fmt.Sprintf("%d keys between two processes", keys)
	if keys == 1 {
		which = "one key between two processes, one waiter"
	}
	return row{
		name: name, title: "release in one process to grant in another, " + which,
		kind: (*child).handOver, libraries: libraries,
		processes: 2, workers: keys, keys: keys, lease: defaultLease, least: least,
		columns: handOverColumns,
		brief:   func(r *result) string { return fmt.Sprint("p50 ", short(r.wait(0.5))) },
	}
}

// rowOf finds a row by its name; nil for none.
func rowOf(name string) *row {
	for i := range rows {
		if rows[i].name == name {
			return &rows[i]
		}
	}
	return nil
}

// place says where the server of a row is.
func (r *row) place() string {
	if r.far {
		return "a network"
	}
	return "loopback"
}

// keyNames are the names of a row's keys.
func (r *row) keyNames() []string {
	names := make([]string, r.keys)
	for i := range names {
		names[i] = fmt.Sprintf("bench-%06d", i)
	}
	return names
}

// thousands writes 100000 as 100,000.
func thousands(n int) string {
	s := fmt.Sprint(n)
	var b strings.Builder
	for i, c := range s {
		if i > 0 && (len(s)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(c)
	}
	return b.String()
}
