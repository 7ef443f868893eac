package etcdstore

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
)

const authenticate = "/etcdserverpb.Auth/Authenticate"

// slowly is an etcd that takes a second to compare a password.
type slowly struct {
	mu    sync.Mutex
	times int
}

func (s *slowly) invoke(ctx context.Context, _ string, _, reply any, _ *grpc.ClientConn, _ ...grpc.CallOption) error {
	s.mu.Lock()
	s.times++
	s.mu.Unlock()
	select {
	case <-time.After(time.Second):
		reply.(*etcdserverpb.AuthenticateResponse).Token = "token"
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Each call waits for less than an authentication takes.
func TestCallsShareAnAuthenticationThatOutlivesThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd, l := &slowly{}, &login{}
		try := func(wait time.Duration) (string, error) {
			ctx, cancel := context.WithTimeout(t.Context(), wait)
			defer cancel()
			var reply etcdserverpb.AuthenticateResponse
			err := l.intercept(ctx, authenticate, &etcdserverpb.AuthenticateRequest{}, &reply, nil, etcd.invoke)
			return reply.Token, err
		}
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				begin := time.Now()
				for {
					token, err := try(300 * time.Millisecond)
					if err == nil && token == "token" {
						break
					}
					if !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) > time.Minute {
						t.Errorf("%q, %v after %v; want the token after a second", token, err, time.Since(begin))
						return
					}
				}
			})
		}
		all.Wait()
		if etcd.times != 1 {
			t.Errorf("%d authentications for the calls of one client; want 1", etcd.times)
		}
		if _, err := try(time.Minute); err != nil || etcd.times != 2 { // the token that was used has ended, too
			t.Errorf("%v, and %d authentications; want a second one", err, etcd.times)
		}
	})
}

// No caller was left when the authentication was done: the next one gets its token.
func TestATokenThatNoCallerWaitsForIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd, l := &slowly{}, &login{}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		var reply etcdserverpb.AuthenticateResponse
		_ = l.intercept(ctx, authenticate, nil, &reply, nil, etcd.invoke)
		time.Sleep(5 * time.Second)
		if err := l.intercept(t.Context(), authenticate, nil, &reply, nil, etcd.invoke); err != nil || reply.Token != "token" || etcd.times != 1 {
			t.Errorf("%q, %v after %d authentications; want the token of the first", reply.Token, err, etcd.times)
		}
	})
}
