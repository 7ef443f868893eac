package quorum_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/quorum"
	"github.com/interlock-go/interlock/internal/redistest"
)

func Example() {
	addrs, stop := exampleServers() // your three masters
	defer stop()
	nodes := []redis.UniversalClient{
		redis.NewClient(&redis.Options{Addr: addrs[0]}),
		redis.NewClient(&redis.Options{Addr: addrs[1]}),
		redis.NewClient(&redis.Options{Addr: addrs[2]}), // better five
	}
	for _, rdb := range nodes {
		defer rdb.Close()
	}
	quiet := quorum.Logger(slog.New(slog.NewTextHandler(io.Discard, nil)))

	// They have been started for the first time.
	store, err := quorum.New(nodes, quorum.AdmitYoung(), quiet)
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	locker, err := core.New(store)
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close(context.Background())

	first, err := locker.Lock(context.Background(), "account/42")
	if err != nil {
		log.Fatal(err)
	}
	_ = first.Release(context.Background())

	_ = nodes[0].ShutdownNoSave(context.Background()) // one of three may go
	second, err := locker.Lock(context.Background(), "account/42")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("the token grew:", second.Token() > first.Token())
	_ = second.Release(context.Background())
	// Output:
	// the token grew: true
}

func ExampleNew_evenNumber() {
	var nodes [4]redis.UniversalClient
	_, err := quorum.New(nodes[:])
	fmt.Println(err)
	// Output:
	// interlock: bad configuration: 4 nodes tolerate no more failures than 3; use an odd number of nodes, at least 3
}

// An Example has no testing.TB to start servers with; this one ends with it.
type exampleTB struct {
	testing.TB // nil: only what is below is called
	cleanups   []func()
}

func (tb *exampleTB) Helper()                           {}
func (tb *exampleTB) Context() context.Context          { return context.Background() }
func (tb *exampleTB) Cleanup(f func())                  { tb.cleanups = append(tb.cleanups, f) }
func (tb *exampleTB) Fatalf(format string, args ...any) { log.Fatalf(format, args...) }

func (tb *exampleTB) TempDir() string {
	dir, err := os.MkdirTemp("", "quorum-")
	if err != nil {
		log.Fatal(err)
	}
	tb.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func exampleServers() (addrs []string, stop func()) {
	tb := &exampleTB{}
	for _, srv := range redistest.Independent(tb, 3) {
		addrs = append(addrs, srv.Addr())
	}
	return addrs, func() {
		for i := len(tb.cleanups) - 1; i >= 0; i-- {
			tb.cleanups[i]()
		}
	}
}

// The lines of the package comment that stand in no Example.
func _(nodes []redis.UniversalClient) {
	store, err := quorum.New(nodes)
	if err != nil {
		log.Fatal(err)
	}
	_ = store
	store, err = quorum.New(nodes, quorum.AdmitYoung())
	if err != nil {
		log.Fatal(err)
	}
	locker, err := core.New(store)
	_, _ = locker, err
}

func _(nodes []redis.UniversalClient) {
	store, err := quorum.New(nodes, quorum.AdmitYoung())
	_, _ = store, err
}
