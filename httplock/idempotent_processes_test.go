//go:build unix

package httplock_test

import (
	"testing"

	"github.com/interlock-go/interlock/internal/idemtest"
)

func TestIdempotentProcesses(t *testing.T) { idemtest.RunHTTPProcesses(t, serveIdempotent) }
