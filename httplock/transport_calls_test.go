package httplock_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/httplock"
)

// A gateway in front of a ledger dies after the ledger's answer, and its client asks again. The
// ledger has another address by then.
func TestAGatewayThatIsAskedAgainPaysOnce(t *testing.T) {
	var paid, died atomic.Int32
	ledger, end := inside(t, memstore.New(), "", func(w http.ResponseWriter, _ *http.Request) {
		paid.Add(1)
		w.WriteHeader(http.StatusCreated)
	})
	defer end()
	pay := &http.Client{Transport: &httplock.Transport{Base: ledger}}
	gateway, end := inside(t, memstore.New(), "", func(_ http.ResponseWriter, r *http.Request) {
		for range 2 { // two payments
			url := fmt.Sprintf("http://10.0.0.%d:8080/payments", 1+died.Load())
			out, _ := http.NewRequestWithContext(r.Context(), http.MethodPost, url, strings.NewReader("pay"))
			res, err := pay.Do(out)
			if err != nil {
				t.Error(err)
				continue
			}
			_ = res.Body.Close()
		}
		if died.Add(1) == 1 {
			panic(http.ErrAbortHandler)
		}
	})
	defer end()
	client := &http.Client{Transport: &httplock.Transport{Base: roundTripper(func(r *http.Request) (res *http.Response, err error) {
		defer func() {
			if recover() != nil {
				err = errors.New("the connection was lost")
			}
		}()
		return gateway.RoundTrip(r)
	})}}
	res, err := client.Post("http://gateway/orders", "", strings.NewReader("order 17"))
	if err != nil || paid.Load() != 2 || died.Load() != 2 {
		t.Fatalf("%v, %v, paid %d times in %d attempts; want each of two payments once", res, err, paid.Load(), died.Load())
	}
	_ = res.Body.Close()
}

func TestTwoCallsOfAHandlerAtOnceAreRefusedBeforeTheyAreSent(t *testing.T) {
	var begun atomic.Int32
	begins, goesOn := make(chan struct{}), make(chan struct{})
	pay := &http.Client{Transport: &httplock.Transport{Base: roundTripper(func(r *http.Request) (*http.Response, error) {
		if begun.Add(1) == 1 {
			close(begins)
			<-goesOn
		}
		return says(201)(r)
	})}}
	gateway, end := inside(t, memstore.New(), "", func(_ http.ResponseWriter, r *http.Request) {
		post := func(name string) error {
			ctx := r.Context()
			if name != "" {
				ctx = idempotency.WithCall(ctx, name)
			}
			out, _ := http.NewRequestWithContext(ctx, http.MethodPost, "http://ledger/payments", strings.NewReader("pay"))
			res, err := pay.Do(out)
			if err == nil {
				_ = res.Body.Close()
			}
			return err
		}
		first := make(chan error, 1)
		go func() { first <- post("") }()
		<-begins
		if err := post(""); !errors.Is(err, idempotency.ErrUnnamedCall) || begun.Load() != 1 {
			t.Errorf("%v, %d sent; want ErrUnnamedCall and nothing sent", err, begun.Load())
		}
		if err := post("fee"); err != nil {
			t.Errorf("a call with a name: %v", err)
		}
		close(goesOn)
		if err := <-first; err != nil {
			t.Error(err)
		}
		if err := post(""); err != nil {
			t.Errorf("a call after the first has ended: %v", err)
		}
	})
	defer end()
	res, err := (&http.Client{Transport: &httplock.Transport{Base: gateway}}).Post("http://gateway/orders", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
}

// Two services can have one host. The same call has the same key in each attempt.
func TestAServiceIsItsHostAndPort(t *testing.T) {
	keys := map[string]string{}
	pay := &http.Client{Transport: &httplock.Transport{Base: roundTripper(func(r *http.Request) (*http.Response, error) {
		keys[r.URL.String()] = r.Header.Get(idempotency.KeyHeader)
		return says(201)(r)
	})}}
	gateway, end := inside(t, memstore.New(), "", func(_ http.ResponseWriter, r *http.Request) {
		for _, url := range []string{
			"http://ledger/pay", "http://ledger:80/pay", "http://ledger:8080/pay", "http://ledger:8081/pay",
			"http://localhost:8080/pay", "http://127.0.0.1:8080/pay", "http://[::1]:8081/pay", "http://10.0.0.1:8080/pay", "http://10.0.0.2:9090/pay",
		} {
			out, _ := http.NewRequestWithContext(idempotency.WithCall(r.Context(), "one"), http.MethodPost, url, strings.NewReader("pay"))
			res, err := pay.Do(out)
			if err != nil {
				t.Error(err)
				continue
			}
			_ = res.Body.Close()
		}
	})
	defer end()
	res, err := (&http.Client{Transport: &httplock.Transport{Base: gateway}}).Post("http://gateway/orders", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	for _, c := range []struct {
		a, b string
		same bool
	}{
		{"http://ledger/pay", "http://ledger:80/pay", true},
		{"http://ledger:8080/pay", "http://ledger:8081/pay", false},
		{"http://localhost:8080/pay", "http://127.0.0.1:8080/pay", true},
		{"http://localhost:8080/pay", "http://[::1]:8081/pay", false},
		{"http://10.0.0.1:8080/pay", "http://10.0.0.2:9090/pay", true},
	} {
		if (keys[c.a] == keys[c.b]) != c.same || keys[c.a] == "" {
			t.Errorf("%s has the key %q, and %s %q; want them equal: %v", c.a, keys[c.a], c.b, keys[c.b], c.same)
		}
	}
}
