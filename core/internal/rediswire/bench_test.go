//go:build integration

package rediswire

import (
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/internal/redistest"
)

// BenchmarkRawPair is the two scripts of an uncontended lock, sent by a client that does
// nothing else: what there is to measure the lock against.
func BenchmarkRawPair(b *testing.B) {
	rdb := redistest.Shared(b).Client(b, func(o *redis.Options) { o.ContextTimeoutEnabled = true })
	acquire, release := redis.NewScript(acquireScript.source), redis.NewScript(releaseScript.source)
	for _, s := range []*redis.Script{acquire, release} {
		if err := s.Load(b.Context(), rdb).Err(); err != nil {
			b.Fatal(err)
		}
	}
	const owner = "0123456789abcdef0123456789abcdef:1"
	b.ReportAllocs()
	for b.Loop() {
		err := acquire.EvalSha(b.Context(), rdb, []string{"interlock:{k}", "interlock:{k}:fence"}, owner, 30000, 90000, "").Err()
		if err != nil {
			b.Fatal(err)
		}
		if err := release.EvalSha(b.Context(), rdb, []string{"interlock:{k}"}, owner, "PUBLISH", "").Err(); err != nil {
			b.Fatal(err)
		}
	}
}
