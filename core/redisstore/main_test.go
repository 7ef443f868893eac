package redisstore_test

import (
	"flag"
	"os"
	"runtime"
	"strconv"
	"testing"

	"github.com/interlock-go/interlock/internal/redistest"
)

// children are the processes that a test starts of its own binary: by an environment
// variable, what they do with its value.
var children = map[string]func(value string){}

func TestMain(m *testing.M) {
	for name, run := range children {
		if value := os.Getenv(name); value != "" {
			run(value)
			return
		}
	}
	// Tests that run beside each other wait more than they work. The flag of the caller
	// counts, which is read later.
	_ = flag.Set("test.parallel", strconv.Itoa(4*runtime.GOMAXPROCS(0)))
	redistest.Main(m)
}
