//go:build integration && long

package redisstore_test

import (
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/internal/testkit"
)

// Processes that have ended leave their places in line. A release passes them over, as they listen no more: no caller that
// asks once is refused.
func TestLocksOfEndedProcessesAreHadByCallersThatAskOnce(t *testing.T) {
	t.Parallel()
	w := alone(t)
	refused := testkit.AskAfterEnded(t, func(_ *testing.T, line *testkit.Line) core.Store {
		return w.store(func(o *redis.Options) { o.Dialer = line.Dial })
	}, false)
	if refused > 0 {
		t.Errorf("%d callers that ask once are refused a lock that ended processes wait for; want none", refused)
	}
}
