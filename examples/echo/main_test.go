package main

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/interlock-go/interlock/examples/internal/servicetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestService(t *testing.T) { servicetest.HTTP(t, true, run) }
