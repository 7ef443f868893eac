package main

import (
	"bufio"
	"fmt"
	"net"
	"testing"
	"time"
)

// Data on the way arrives whole, in order and no earlier than the way takes. Pieces that
// follow one another do not wait for one another.
func TestTheWayDelaysEachPieceByTheSameTime(t *testing.T) {
	const way, pieces = 300 * time.Millisecond, 20
	server := listen(t)
	go func() {
		for {
			cn, err := server.Accept()
			if err != nil {
				return
			}
			go func() { // says everything again
				lines := bufio.NewScanner(cn)
				for lines.Scan() {
					_, _ = fmt.Fprintln(cn, lines.Text())
				}
				_ = cn.Close()
			}()
		}
	}()
	near := listen(t)
	go relayAll(near, server.Addr().String(), way)
	cn, err := net.Dial("tcp", near.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	var sent [pieces]time.Time
	for i := range pieces {
		sent[i] = time.Now()
		if _, err := fmt.Fprintln(cn, i); err != nil {
			t.Fatal(err)
		}
	}
	lines := bufio.NewScanner(cn)
	for i := range pieces {
		if !lines.Scan() || lines.Text() != fmt.Sprint(i) {
			t.Fatalf("piece %d came back as %q (%v)", i, lines.Text(), lines.Err())
		}
		if took := time.Since(sent[i]); took < 2*way {
			t.Errorf("piece %d came back after %v; want at least %v", i, took, 2*way)
		}
	}
	if took := time.Since(begin); took > pieces*way {
		t.Errorf("%d pieces took %v; the way is %v, and they had to wait for one another", pieces, took, way)
	}
	if err := cn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if lines.Scan() || lines.Err() != nil {
		t.Errorf("after the end came %q (%v); want the end of the connection", lines.Text(), lines.Err())
	}
}

// listen listens until the test ends.
func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// A run that says that there is no way leaves out the workloads of distant servers.
func TestTheWorkloadsBehindAWayAreRunIfThereIsOne(t *testing.T) {
	for args, want := range map[string]int{"250us": 1, "0": 0} {
		o, ok := parse([]string{"-way", args, "-only", "^free-16-far/interlock"}, nil)
		if !ok {
			t.Fatalf("-way %s cannot be carried out", args)
		}
		if n := len(o.plan(0)); n != want {
			t.Errorf("-way %s: %d cells, want %d", args, n, want)
		}
	}
}
