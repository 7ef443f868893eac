package once_test

import (
	"testing"

	"go.uber.org/goleak"

	_ "github.com/interlock-go/interlock/internal/bubble"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
