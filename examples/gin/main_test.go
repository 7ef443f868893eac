package main

import (
	"testing"

	"github.com/interlock-go/interlock/internal/httpx/httpxtest"
	"github.com/interlock-go/interlock/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

func TestEmbeddedServerLosesNoDebit(t *testing.T) { httpxtest.Debits(t, serve, "", 1) }

func TestTwoServersLoseNoDebit(t *testing.T) {
	httpxtest.Debits(t, serve, redistest.Shared(t).Addr(), 2)
}
