package main

import (
	"os"
	"testing"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"
)

// toolEnv makes this program the tool.
const toolEnv = "INTERLOCK_TEST_TOOL"

func TestMain(m *testing.M) {
	if os.Getenv(toolEnv) != "" {
		main()
	}
	redis.SetLogger(silent{}) // as main does
	goleak.VerifyTestMain(m)
}
