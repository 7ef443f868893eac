//go:build integration && unix

package postgres_test

import (
	"testing"

	"github.com/interlock-go/interlock/trust/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }
