package redistest

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Vouch gives the server the mark of a node of a quorum that has kept its votes, as a
// process leaves it after maxTTL (package quorum). A server that has just been started has
// no vote before that. The prefix is the prefix of the locks.
func (s *Server) Vouch(tb testing.TB, prefix string, maxTTL time.Duration) {
	tb.Helper()
	run := infoField(s.info(tb, "server"), "run_id")
	mark := run + " vouched-for " + strconv.FormatInt(maxTTL.Milliseconds(), 10) + " votes"
	s.must(tb, func(ctx context.Context, rdb *redis.Client) error {
		return rdb.Set(ctx, prefix+":quorum", mark, 0).Err()
	})
}
