package etcdstore

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"

	"github.com/interlock-go/interlock/core/casstore"
)

// watcher is an etcd that is watched.
type watcher struct {
	clientv3.KV
	clientv3.Watcher

	hangs   bool // the member does not even begin a watch
	silent  bool // it answers to no question
	ended   bool // the token of the first stream has ended
	mu      sync.Mutex
	streams []string // of the watches that were begun
	open    []chan clientv3.WatchResponse
}

func (w *watcher) Get(context.Context, string, ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	return &clientv3.GetResponse{Header: &etcdserverpb.ResponseHeader{Revision: 1}}, nil
}

func (w *watcher) Watch(ctx context.Context, _ string, _ ...clientv3.OpOption) clientv3.WatchChan {
	w.mu.Lock()
	md, _ := metadata.FromOutgoingContext(ctx)
	on := md.Get("interlock-watches")[0]
	w.streams = append(w.streams, on)
	responses := make(chan clientv3.WatchResponse, 10)
	w.open = append(w.open, responses)
	first := clientv3.WatchResponse{Created: true}
	if w.ended && on == "0" {
		first.Canceled, first.CancelReason = true, rpctypes.ErrGRPCInvalidAuthToken.Error()
	}
	responses <- first
	hangs := w.hangs
	if len(w.open) > 1 {
		hangs = hangs || w.silent
	}
	w.mu.Unlock()
	if hangs {
		<-ctx.Done()
	}
	return responses
}

// begun returns how many watches were begun: a question may be under way.
func (w *watcher) begun() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.open)
}

// RequestProgress is not answered, as by a proxy.
func (w *watcher) RequestProgress(context.Context) error { return nil }

func (w *watcher) server() casstore.Server { return Server(&clientv3.Client{KV: w, Watcher: w}) }

// A stream keeps the token of its begin. When that has ended, etcd refuses new watches on it,
// for as long as other watches keep the stream open.
func TestAWatchThatIsRefusedIsBegunOnANewStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := &watcher{ended: true}
		s := etcd.server()
		if err := s.Watch(t.Context(), "k/", func([]casstore.Change) {}); !errors.Is(err, errEnded) || !strings.Contains(err.Error(), "invalid auth token") {
			t.Errorf("%v; want that the watch has ended, and why", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		reported := false
		ended := make(chan error)
		go func() { ended <- s.Watch(ctx, "k/", func([]casstore.Change) { reported = true }) }()
		synctest.Wait()
		if !reported {
			t.Error("the second watch reports nothing; want what there is")
		}
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("%v; want Canceled", err)
		}
		_ = s.Watch(ctx, "k/", func([]casstore.Change) {}) // a watch that its caller has ended changes nothing
		if want := []string{"0", "1", "1"}; !slices.Equal(etcd.streams, want) {
			t.Errorf("the watches were on the streams %q; want %q", etcd.streams, want)
		}
	})
}

func TestAWatchOfAMemberThatHangsEnds(t *testing.T) {
	for name, etcd := range map[string]*watcher{
		"it hangs when the watch begins": {hangs: true},
		"it hangs later":                 {silent: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begin := time.Now()
				err := etcd.server().Watch(t.Context(), "k/", func([]casstore.Change) {})
				if took := time.Since(begin); !errors.Is(err, errDeaf) || took > deaf+quiet {
					t.Errorf("%v after %v; want %v after %v at most", err, took, errDeaf, deaf+quiet)
				}
			})
		})
	}
}

// A proxy of etcd does not answer to requests for the progress of a watch. Its watches were taken for deaf, and begun
// again, every 8 s.
func TestAWatchThroughAProxyLasts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		etcd, reports := &watcher{}, 0
		if err := etcd.server().Watch(ctx, "k/", func([]casstore.Change) { reports++ }); !errors.Is(err, context.DeadlineExceeded) || reports != 1 {
			t.Errorf("%v and %d reports; want that the watch lasts", err, reports)
		}
		if n := etcd.begun(); n > 31 {
			t.Errorf("a quiet watch has asked %d times in a minute; want once in %v", n-1, quiet)
		}
	})
}

// Many watches of keys that do not change ask together.
func TestWatchesThatAreQuietAskTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := &watcher{}
		s := etcd.server()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var all sync.WaitGroup
		const watches = 100
		for range watches {
			all.Go(func() {
				if err := s.Watch(ctx, "k/", func([]casstore.Change) {}); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("a watch of a member that answers: %v; want that it lasts", err)
				}
			})
		}
		all.Wait()
		if n := etcd.begun() - watches; n == 0 || n > 31 {
			t.Errorf("%d watches have asked %d times in a minute; want once in %v together", watches, n, quiet)
		}
	})
}
