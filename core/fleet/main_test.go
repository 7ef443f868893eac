package fleet_test

import (
	"errors"
	"testing"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/fleet"
	"github.com/interlock-go/interlock/internal/redistest"
)

// Where a server is away, go-redis goes on to dial for a while after the client is closed.
func TestMain(m *testing.M) {
	redistest.Main(m, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

func TestBadConfigurationIsRefused(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer rdb.Close()
	_, err := fleet.New(nil)
	wantErr(t, err, driver.ErrConfig)
	for _, opt := range []fleet.Option{
		fleet.Prefix(""), fleet.Prefix("a{b"), fleet.Rate(0), fleet.Rate(-1), fleet.Rate(99),
	} {
		_, err := fleet.New(rdb, opt)
		wantErr(t, err, driver.ErrConfig)
	}
}

func wantErr(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("error is %v, want %v", err, want)
	}
}
