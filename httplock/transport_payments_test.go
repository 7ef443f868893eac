package httplock_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/httplock"
)

// network is a listener with connections inside the process.
type network struct {
	accepted chan net.Conn
	down     atomic.Bool
	closed   chan struct{}
}

func (n *network) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	if n.down.Load() {
		return nil, errors.New("connection refused")
	}
	here, there := net.Pipe()
	select {
	case n.accepted <- there:
		return here, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (n *network) Accept() (net.Conn, error) {
	select {
	case c := <-n.accepted:
		return c, nil
	case <-n.closed:
		return nil, net.ErrClosed
	}
}
func (n *network) Close() error   { close(n.closed); return nil }
func (n *network) Addr() net.Addr { return &net.UnixAddr{Name: "memory"} }

// foreign are the statuses of servers in front of the bank.
var foreign = []int{302, 308, 400, 401, 403, 404, 405, 408, 413, 421, 425}

// faults are in front of the bank: they drop requests and responses, refuse, show a login page,
// never answer, and take the server away for a second.
func faults(bank http.Handler, net *network) http.Handler {
	var mu sync.Mutex
	lot := rand.New(rand.NewPCG(1, 2))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		drawn, later, dies, stranger := lot.IntN(20), lot.IntN(2) == 0, lot.IntN(200) == 0, foreign[lot.IntN(len(foreign))]
		hangs := drawn == 9 && lot.IntN(4) == 0
		mu.Unlock()
		if r.URL.Path == "/login" {
			return // 200
		}
		refuse := func(status int) {
			if later {
				w.Header().Set("Retry-After", "1")
			}
			w.WriteHeader(status)
		}
		if dies && net.down.CompareAndSwap(false, true) {
			time.AfterFunc(time.Second, func() { net.down.Store(false) })
			panic(http.ErrAbortHandler)
		}
		switch drawn {
		case 0, 1: // before the effect
			panic(http.ErrAbortHandler)
		case 2, 3: // after it
			bank.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler)
		case 4:
			refuse(423)
		case 5:
			refuse(429)
		case 6:
			refuse(503)
		case 7:
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(409)
		case 8:
			w.Header().Set("Location", "/login")
			w.WriteHeader(stranger)
		case 9:
			bank.ServeHTTP(httptest.NewRecorder(), r)
			if hangs {
				<-r.Context().Done()
			}
			panic(http.ErrAbortHandler)
		default:
			bank.ServeHTTP(w, r)
		}
	})
}

// Of 2,000 payments each has one effect, though much breaks on the way. No payment that was
// made is reported as failed: it is answered, or reported as unknown.
func TestPaymentsThroughTransportTakePlaceOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine, err := idempotency.New(memstore.New(), idempotency.Global())
		if err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		made := map[string]int{}
		var runs atomic.Int64
		bank := httplock.Idempotent(engine)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			id, err := io.ReadAll(r.Body)
			if err == nil {
				err = idempotency.MarkEffect(r.Context())
			}
			if err != nil {
				http.Error(w, err.Error(), http.StatusServiceUnavailable)
				return
			}
			time.Sleep(10 * time.Millisecond)
			mu.Lock()
			made[string(id)]++
			mu.Unlock()
			if runs.Add(1)%50 == 0 { // the process dies
				panic(http.ErrAbortHandler)
			}
			w.WriteHeader(http.StatusCreated)
		}))
		net := &network{accepted: make(chan net.Conn), closed: make(chan struct{})}
		server := &http.Server{Handler: faults(bank, net)}
		go func() { _ = server.Serve(net) }()
		base := &http.Transport{DialContext: net.dial, MaxIdleConnsPerHost: 20}
		client := &http.Client{Transport: &httplock.Transport{Base: base}, Timeout: 30 * time.Second}
		// pay sends a payment, and again with the key of an unknown outcome.
		pay := func(ctx context.Context, id string) (res *http.Response, err error) {
			key := ""
			for range 3 {
				r, _ := http.NewRequestWithContext(ctx, http.MethodPost, "http://bank/payments", strings.NewReader(id))
				if key != "" {
					r.Header.Set(idempotency.KeyHeader, key)
				}
				res, err = client.Do(r)
				var failed *idempotency.RequestError
				if !errors.Is(err, idempotency.ErrOutcomeUnknown) || !errors.As(err, &failed) {
					break
				}
				key = failed.Key
			}
			return res, err
		}

		var answered, unknown, failed atomic.Int64
		var all sync.WaitGroup
		for c := range 20 {
			all.Go(func() {
				for i := range 100 {
					id := fmt.Sprint(c, "-", i)
					res, err := pay(t.Context(), id)
					mu.Lock()
					n := made[id]
					mu.Unlock()
					switch {
					case err == nil && res.StatusCode == http.StatusCreated:
						answered.Add(1)
						if n != 1 {
							t.Errorf("payment %s was answered, and made %d times", id, n)
						}
					case errors.Is(err, idempotency.ErrOutcomeUnknown):
						unknown.Add(1)
					default:
						failed.Add(1)
						if n != 0 {
							t.Errorf("payment %s was made, and told as failed: %v, %v", id, res, err)
						}
					}
					if err == nil {
						_ = res.Body.Close()
					}
				}
			})
		}
		all.Wait()
		base.CloseIdleConnections()
		if err := errors.Join(server.Close(), engine.Close(t.Context())); err != nil {
			t.Error(err)
		}
		for id, n := range made {
			if n != 1 {
				t.Errorf("payment %s was made %d times", id, n)
			}
		}
		t.Logf("%d answered, %d unknown, %d failed", answered.Load(), unknown.Load(), failed.Load())
		if answered.Load() < 1500 || unknown.Load() == 0 {
			t.Errorf("%d answered, %d unknown, %d failed", answered.Load(), unknown.Load(), failed.Load())
		}
	})
}
