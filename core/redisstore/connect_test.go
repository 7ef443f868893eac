package redisstore_test

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
)

// A renewal ends with its time, and the connection that is made for it does not: over a
// distance it takes longer, and no renewal would ever find one.
func TestARenewalThatEndsLeavesItsConnectionToTheNext(t *testing.T) {
	t.Parallel()
	gate, carried := make(chan struct{}), make(chan bool, 10)
	addr := listen(t, func(conn net.Conn) {
		answer(conn, func(cmd []string) string {
			<-gate
			return scripts(func() string {
				carried <- true
				return ":1\r\n"
			})(cmd)
		})
		carried <- false
	})
	store := storeAt(t, addr)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	store.Renew(ctx, []driver.Renewal{{Key: "k", Owner: "a:1", TTL: time.Second}}, func(_ int, _ bool, err error) {
		if !errors.Is(err, core.ErrUnavailable) {
			t.Errorf("the renewal: %v, want ErrUnavailable", err)
		}
	})
	close(gate) // the server answers from now on
	if !<-carried {
		t.Error("the connection was given up with the renewal")
	}
}
