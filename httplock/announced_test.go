package httplock_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/httplock"
)

// announce opens connections that each announce a body of 1 MiB, and send a part
// of it. It returns by how much the heap has grown once the server has all parts.
func announce(tb testing.TB, connections, part int) (grown uint64) {
	tb.Helper()
	engine, err := idempotency.New(&oneRecord{}, idempotency.Global())
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = engine.Close(context.Background()) }()
	h := httplock.Idempotent(engine)(http.NotFoundHandler())
	arrived := make(chan struct{}, connections)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Body = &counted{r.Body, part, arrived}
		h.ServeHTTP(w, r)
	}))
	defer srv.Close()
	defer srv.CloseClientConnections()
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	request := fmt.Appendf(nil, "POST / HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k\r\nContent-Length: %d\r\n\r\n", 1<<20)
	request = append(request, make([]byte, part)...)
	for range connections {
		conn, err := (&net.Dialer{}).DialContext(tb.Context(), "tcp", srv.Listener.Addr().String())
		if err != nil {
			tb.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		if _, err := conn.Write(request); err != nil {
			tb.Fatal(err)
		}
	}
	for range connections {
		select {
		case <-arrived:
		case <-time.After(time.Minute):
			tb.Fatal("the bodies did not arrive")
		}
	}
	after := heap()
	return max(after, before) - before
}

// counted tells when all that will come of a body has come.
type counted struct {
	io.ReadCloser
	left    int
	arrived chan<- struct{}
}

func (c *counted) Read(b []byte) (int, error) {
	n, err := c.ReadCloser.Read(b)
	if c.left -= n; c.left == 0 {
		c.arrived <- struct{}{}
	}
	return n, err
}

func TestBodiesThatAreAnnouncedAndNotSentDoNotPinTheHeap(t *testing.T) {
	for part, most := range map[int]uint64{84: 100 << 10, 100 << 10: 400 << 10} {
		if grown := announce(t, 100, part) / 100; grown > most {
			t.Errorf("a connection that has sent %d bytes of 1 MiB pins %d bytes; at most %d are accepted", part, grown, most)
		}
	}
}
