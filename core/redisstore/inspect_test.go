package redisstore_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core/redisstore"
)

// A warning that everybody gets is read by nobody.
func TestDefaultClientIsWarnedAboutNothingAndABadOneOnce(t *testing.T) {
	addrs := []string{"127.0.0.1:1"}
	for name, c := range map[string]struct {
		client redis.UniversalClient
		want   []string
	}{
		"default":       {redis.NewUniversalClient(&redis.UniversalOptions{Addrs: addrs}), nil},
		"cluster":       {redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs}), nil},
		"long":          {redis.NewClient(&redis.Options{Addr: addrs[0], ReadTimeout: time.Minute}), []string{"ReadTimeout"}},
		"endless":       {redis.NewClient(&redis.Options{Addr: addrs[0], ReadTimeout: -1}), []string{"ReadTimeout"}},
		"replica reads": {redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs, ReadOnly: true, ReadTimeout: time.Minute}), []string{"ReadOnly", "ReadTimeout"}},
	} {
		var logged bytes.Buffer
		for range 3 {
			store, err := redisstore.New(c.client, redisstore.Logger(slog.New(slog.NewTextHandler(&logged, nil))))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = store.Close() }()
		}
		defer func() { _ = c.client.Close() }()
		text := logged.String()
		if lines := strings.Count(text, "\n"); lines != min(len(c.want), 1) {
			t.Errorf("%s: %d lines: %s", name, lines, text)
		}
		for _, want := range c.want {
			if !strings.Contains(text, want) {
				t.Errorf("%s: no %s in %s", name, want, text)
			}
		}
	}
}
