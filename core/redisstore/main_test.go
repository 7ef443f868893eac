package redisstore_test

import (
	"flag"
	"runtime"
	"strconv"
	"testing"

	"github.com/interlock-go/interlock/internal/redistest"
)

func TestMain(m *testing.M) {
	// Tests that run beside each other wait more than they work. The flag of the caller
	// counts, which is read later.
	_ = flag.Set("test.parallel", strconv.Itoa(4*runtime.GOMAXPROCS(0)))
	redistest.Main(m)
}
