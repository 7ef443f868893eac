package main

import (
	"testing"

	"github.com/interlock-go/interlock/examples/internal/servicetest"
)

func TestMain(m *testing.M) { servicetest.Main(m, main) }

func TestService(t *testing.T) { servicetest.HTTP(t, false) }
