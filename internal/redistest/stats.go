package redistest

import (
	"context"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

// Calls returns how often each command has run since the server started or
// [Server.ResetStats] was called, by lower-case name ("evalsha", "client|setinfo").
// Commands that a script calls count under their own name as well; INFO, the source
// of the figures, is left out.
func (s *Server) Calls(tb testing.TB) map[string]int64 {
	tb.Helper()
	calls := make(map[string]int64)
	for line := range strings.Lines(s.info(tb, "commandstats")) {
		// cmdstat_evalsha:calls=12,usec=345,...
		name, stat, ok := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":calls=")
		if !ok || name == "info" {
			continue
		}
		number, _, _ := strings.Cut(stat, ",")
		n, err := strconv.ParseInt(number, 10, 64)
		if err != nil {
			tb.Fatalf("redistest: commandstats line %q: %v", line, err)
		}
		calls[name] = n
	}
	return calls
}

// Stat returns a number out of INFO, such as "total_commands_processed",
// "connected_clients" or "expired_keys". A field that does not exist, or is not
// a whole number, fails the test. The total of commands includes commands of scripts
// and the few that this call sends itself.
func (s *Server) Stat(tb testing.TB, field string) int64 {
	tb.Helper()
	n, err := strconv.ParseInt(infoField(s.info(tb, "everything"), field), 10, 64)
	if err != nil {
		tb.Fatalf("redistest: INFO field %q: %v", field, err)
	}
	return n
}

// ResetStats sets the counters of [Server.Calls] and [Server.Stat] to zero.
func (s *Server) ResetStats(tb testing.TB) {
	tb.Helper()
	s.must(tb, func(ctx context.Context, rdb *redis.Client) error {
		return rdb.ConfigResetStat(ctx).Err()
	})
}

func (s *Server) info(tb testing.TB, section string) (info string) {
	tb.Helper()
	s.must(tb, func(ctx context.Context, rdb *redis.Client) (err error) {
		info, err = rdb.Info(ctx, section).Result()
		return err
	})
	return info
}

// must runs fn against the server and fails the test on its error.
func (s *Server) must(tb testing.TB, fn func(context.Context, *redis.Client) error) {
	tb.Helper()
	ctx := tb.Context()
	if err := s.adminWithin(ctx, once, func(rdb *redis.Client) error { return fn(ctx, rdb) }); err != nil {
		tb.Fatalf("redistest: %s: %v", s.Addr(), err)
	}
}

// infoField finds "name:value" among the lines of INFO; "" when it is not there.
func infoField(info, name string) string {
	for line := range strings.Lines(info) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
