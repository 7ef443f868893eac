//go:build integration

package rediswire

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/internal/redistest"
)

// A vote that comes while another is under way opens a connection, and does not wait for
// it: it goes over the connection that stands, as soon as that is free.
func TestAVoteDoesNotWaitForAConnectionThatIsBeingMade(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	var hold atomic.Bool
	held, gate := make(chan bool, 10), make(chan struct{})
	rdb := srv.Client(t, patiently, func(o *redis.Options) {
		o.DialTimeout = time.Minute
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if hold.Load() {
				held <- true
				<-gate
			}
			return (&net.Dialer{}).DialContext(ctx, network, addr)
		}
	})
	v := voterOf(t, rdb, "stand", func(Identity) error { return nil })
	defer close(gate)
	v.vote("a", 1)
	hold.Store(true)
	srv.Pause(t)
	votes := make(chan error, 2)
	ask := func() {
		v.Propose(Proposal{Key: "k", Owner: "a", TTL: time.Hour, Ends: 1 << 53, Deadline: time.Now().Add(time.Minute)},
			func(_ Vote, err error) { votes <- err })
	}
	ask()
	q := v.store.requests.direct
	redistest.Eventually(t, 30*time.Second, func(context.Context) error {
		q.mu.Lock()
		defer q.mu.Unlock()
		if n := len(q.queue); n > 0 {
			return fmt.Errorf("%d votes have not left", n)
		}
		return nil
	})
	ask()
	<-held
	srv.Resume(t)
	for range 2 {
		select {
		case err := <-votes:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(30 * time.Second):
			t.Fatal("a vote waits for the connection")
		}
	}
}
