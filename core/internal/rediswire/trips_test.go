//go:build integration

package rediswire

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core/driver"
)

// A process says how far it is from the server when it waits, and its place in the list is
// kept for three times as long. A fresh process also counted its time to connect.
func TestTheTimeInWhichAConnectionIsMadeIsNoRoundTrip(t *testing.T) {
	t.Parallel()
	const dial = 200 * time.Millisecond
	slow := func(o *redis.Options) {
		patiently(o)
		o.DialTimeout = time.Minute
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			cn, err := new(net.Dialer).DialContext(ctx, network, addr)
			<-time.After(dial)
			return cn, err
		}
	}
	for name, ask := range map[string]driver.AcquireRequest{
		"in turn": {}, "the newest": {Line: driver.Newest},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := common(t, slow)
			ask.Key, ask.Owner, ask.TTL = "k", "o", time.Minute
			begin := time.Now()
			rep, err := s.Acquire(t.Context(), ask)
			if err != nil || !rep.Granted {
				t.Fatalf("Acquire returns %+v, %v; want a grant", rep, err)
			}
			took := time.Since(begin)
			if took < dial {
				t.Fatalf("the first request took %v, and its connection alone %v", took, dial)
			}
			if trip := s.RoundTrip(); trip <= 0 || trip > took-dial {
				t.Errorf("a round trip takes %v; want a part of the %v that the request took without the %v of its connection",
					trip, took-dial, dial)
			}
		})
	}
}
