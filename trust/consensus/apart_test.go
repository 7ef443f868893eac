//go:build long && linux

package consensus_test

import (
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// apart is a system that each process reaches over its own connections.
type apart struct {
	servers
	t    *testing.T
	ways []*way // of the processes, in the order of their starts
}

// addrs makes the ways of one more process.
func (a *apart) addrs() []string {
	w := &way{open: make(chan struct{}), conns: map[net.Conn]bool{}}
	close(w.open)
	a.ways = append(a.ways, w)
	var addrs []string
	for _, to := range a.servers.addrs() {
		addrs = append(addrs, w.lead(a.t, to))
	}
	return addrs
}

// way is how one process reaches all members.
type way struct {
	mu     sync.Mutex
	open   chan struct{} // closed while messages pass
	refuse bool          // connections are closed, and new ones, too
	conns  map[net.Conn]bool
}

// lead has a new address lead to a member.
func (w *way) lead(t *testing.T, to string) (addr string) {
	t.Helper()
	return listen(t, func(conn net.Conn) { w.carry(conn, to) })
}

// carry carries one connection.
func (w *way) carry(conn net.Conn, to string) {
	defer conn.Close()
	w.mu.Lock()
	refuse := w.refuse
	if !refuse {
		w.conns[conn] = true
	}
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.conns, conn)
	}()
	if refuse {
		return
	}
	peer, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer peer.Close()
	back := make(chan struct{})
	go func() {
		defer close(back)
		_, _ = io.Copy(gate{w, conn}, peer)
		_ = conn.Close()
	}()
	_, _ = io.Copy(gate{w, peer}, conn)
	_ = peer.Close()
	<-back
}

// gate is one end of a connection: writes wait until the way is open.
type gate struct {
	way *way
	end net.Conn
}

func (g gate) Write(p []byte) (int, error) {
	g.way.mu.Lock()
	open := g.way.open
	g.way.mu.Unlock()
	<-open
	return g.end.Write(p)
}

// cut has no message pass. With refuse, connections break; without, data sent meanwhile
// arrives when the cut ends, also on a connection that its client has left.
func (w *way) cut(refuse bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open, w.refuse = make(chan struct{}), refuse
	for conn := range w.conns {
		if refuse {
			_ = conn.Close()
		}
	}
}

func (w *way) mend() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.refuse = false
	close(w.open)
}

// A holder that reaches no member any more learns from its own clock that its lease has ended,
// and another process has the lock meanwhile.
func TestNoLockIsHeldTwiceWhileItsHolderIsCutOff(t *testing.T) {
	cutHolders(t, newCluster(t), "interlock-long")
}

func TestOnZooKeeperNoLockIsHeldTwiceWhileItsHolderIsCutOff(t *testing.T) {
	cutHolders(t, newEnsemble(t), "zookeeper-long")
}

// cutHolders cuts one process after the other off from all members, for two leases:
// in every second round its connections break, in the others its requests come late.
func cutHolders(t *testing.T, s servers, kind string) {
	t.Helper()
	const lease = 2 * time.Second
	type cut struct {
		process   string
		from, end int64
	}
	var cuts []cut
	var seen *history
	a := &apart{servers: s, t: t}
	enough := func(h *history) bool { return len(cuts) >= *rounds && h.judge().lost > 0 }
	j := run(t, a, kind, lease, *rounds+16, func(a *apart, h *history, workers []*worker) string {
		seen = h
		i := len(cuts) % len(workers)
		a.ways[i].cut(len(cuts)%2 == 0)
		c := cut{process: workers[i].name, from: instant()}
		pause(2 * lease)
		h.waitFor(t, instant()) // by another process
		c.end = instant()
		a.ways[i].mend()
		cuts = append(cuts, c)
		pause(lease / 2)
		h.waitFor(t, instant())
		return ""
	}, enough)
	j.alone(t)
	ended := 0
	for _, c := range cuts {
		for _, one := range seen.holds {
			if one.process != c.process || one.from > c.end || one.to < c.from {
				continue
			}
			if one.lost {
				ended++
			}
			if over := time.Duration(one.to - c.from); over > lease {
				t.Errorf("%s believed that it has %s for %v after it was cut off", one.process, one.key, over)
			}
		}
	}
	t.Logf("%d holds ended by the clock of a process that was cut off", ended)
	if ended == 0 {
		t.Error("no process that was cut off held a lock: the test has gone blind")
	}
}
