package quorum_test

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/quorum"
)

func TestNewSaysWhatItAccepts(t *testing.T) {
	client := func(port int) redis.UniversalClient {
		rdb := redis.NewClient(&redis.Options{Addr: fmt.Sprintf("127.0.0.1:%d", port)})
		t.Cleanup(func() { _ = rdb.Close() })
		return rdb
	}
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}})
	t.Cleanup(func() { _ = ring.Close() })
	one := client(1)
	for _, c := range []struct {
		name  string
		nodes []redis.UniversalClient
		opts  []quorum.Option
		says  string
	}{
		{"none", nil, nil, "at least 3"},
		{"two", []redis.UniversalClient{one, client(2)}, nil, "at least 3"},
		{"four", []redis.UniversalClient{one, client(2), client(3), client(4)}, nil, "4 nodes tolerate no more failures than 3; use an odd number of nodes"},
		{"nil", []redis.UniversalClient{one, nil, client(3)}, nil, "node 1"},
		{"nil client", []redis.UniversalClient{one, (*redis.Client)(nil), client(3)}, nil, "not nil"},
		{"ring", []redis.UniversalClient{one, client(2), ring}, nil, "*redis.Client"},
		{"one client twice", []redis.UniversalClient{one, client(2), one}, nil, "one client"},
		{"one address twice", []redis.UniversalClient{one, client(2), client(1)}, nil, "both 127.0.0.1:1"},
		{"timeout", []redis.UniversalClient{one, client(2), client(3)}, []quorum.Option{quorum.NodeTimeout(time.Millisecond)}, "at least 10ms"},
		{"max TTL", []redis.UniversalClient{one, client(2), client(3)}, []quorum.Option{quorum.MaxTTL(0)}, "at least 10ms"},
		{"endless timeout", []redis.UniversalClient{one, client(2), client(3)}, []quorum.Option{quorum.NodeTimeout(math.MaxInt64)}, "at most"},
		{"endless max TTL", []redis.UniversalClient{one, client(2), client(3)}, []quorum.Option{quorum.MaxTTL(math.MaxInt64)}, "at most"},
		{"prefix", []redis.UniversalClient{one, client(2), client(3)}, []quorum.Option{quorum.Prefix("{")}, "Prefix"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := quorum.New(c.nodes, c.opts...)
			if !errors.Is(err, core.ErrConfig) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("New: %v, want ErrConfig that says %q", err, c.says)
			}
		})
	}
}
