//go:build integration

package rediswire

import (
	"errors"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/internal/redistest"
)

func TestAWrongNameOfTheMasterIsNamed(t *testing.T) {
	t.Parallel()
	set := redistest.Sentinel(t, 0)
	rdb := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "wrong", SentinelAddrs: set.Addrs(), MaxRetries: -1})
	defer func() { _ = rdb.Close() }()
	s := newStore(t, rdb)
	for what, err := range map[string]error{
		"the store": Wrap(s.requests.single.Ping(t.Context()).Err()), "the client": Wrap(rdb.Ping(t.Context()).Err()),
	} {
		if !errors.Is(err, driver.ErrUnavailable) || !strings.Contains(err.Error(), "no master of this name") {
			t.Errorf("%s: %v; want an error that says that the name is not known", what, err)
		}
	}
}
