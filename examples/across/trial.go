package main

import (
	"context"
	"crypto/rand"
	"flag"
	mathrand "math/rand/v2"
	"os"

	"google.golang.org/grpc"

	"github.com/interlock-go/interlock/core/idempotency"
)

var (
	randomKeys = flag.Bool("random-keys", false, "give each call to the ledger a random key")
	kill       = flag.String("kill", "", "`point` of the code (see the calls of at) that kills the process, one time in twenty")
)

// random gives calls a random key for -random-keys. A service has no such interceptor.
func random(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if *randomKeys {
		ctx = idempotency.WithKey(ctx, rand.Text())
	}
	return call(ctx, method, req, reply, cc, opts...)
}

// at kills the process if point is the point of -kill.
func at(point string) {
	if point == *kill && mathrand.N(20) == 0 {
		if self, err := os.FindProcess(os.Getpid()); err == nil {
			_ = self.Kill()
		}
		select {} // the signal comes at once
	}
}
