//go:build integration

package rediswire

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/logs"
	"github.com/interlock-go/interlock/internal/logtest"
	"github.com/interlock-go/interlock/internal/redistest"
)

// Channels are forgotten when a connection is silent. Without the right to subscribe no
// connection ever came to that: each key that was ever contended stayed in memory.
func TestContendedKeysAreForgottenWithoutTheRightToSubscribe(t *testing.T) {
	t.Parallel()
	const n = 200
	srv := redistest.Start(t)
	err := srv.Client(t).Do(t.Context(), "ACL", "SETUSER", "app", "on", ">p", "~*", "&*", "+@all", "-subscribe").Err()
	if err != nil {
		t.Fatal(err)
	}
	var log logtest.Log
	rdb := srv.Client(t, func(o *redis.Options) { o.Username, o.Password = "app", "p" })
	s := open(t, rdb, func(set *Config) { set.Log = logs.To(log.Logger()) })
	t.Cleanup(func() { _ = s.Close() })
	for i := range n {
		s.Calls(fmt.Sprint("w", i), func(driver.Call) {})()
	}
	s.subscriber.mu.Lock()
	for _, topic := range s.subscriber.topics {
		topic.idle = topic.idle.Add(-linger) // as if so much time had gone by
	}
	s.subscriber.mu.Unlock()
	redistest.Eventually(t, time.Minute, func(context.Context) error {
		s.subscriber.mu.Lock()
		defer s.subscriber.mu.Unlock()
		if len(s.subscriber.topics)+len(s.subscriber.subs) != 0 {
			return fmt.Errorf("%d of %d channels and %d connections are left", len(s.subscriber.topics), n, len(s.subscriber.subs))
		}
		if log.Count("SUBSCRIBE; the rule is +subscribe") == 0 { // the line is written on another goroutine
			return errors.New("the log does not name the missing right")
		}
		return nil
	})
	if got := log.Count("SUBSCRIBE; the rule is +subscribe"); got != 1 {
		t.Errorf("the missing right was said %d times, want once", got)
	}
}
