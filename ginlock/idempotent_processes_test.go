//go:build unix

package ginlock_test

import (
	"testing"

	"github.com/interlock-go/interlock/internal/idemtest"
)

func TestIdempotentProcesses(t *testing.T) { idemtest.RunHTTPProcesses(t, serveIdempotent) }
