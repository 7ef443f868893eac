package etcdstore

import (
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

const (
	// keepAlive and keepAliveWait are how a client notices that a member hangs. gRPC takes no
	// shorter time than 10 s.
	keepAlive     = 10 * time.Second
	keepAliveWait = 2 * time.Second
	// loginWait bounds an authentication, which costs a member 0.1 s of CPU: many processes can
	// need one at the same time.
	loginWait = 30 * time.Second
	// loginFresh is for how long a token waits for a call that needs it.
	loginFresh = 10 * time.Second
)

// connected is the key of the [dials] in the context of a client that Connect has made.
type connected struct{}

// dials notes why there is no connection to a member.
type dials struct {
	mu      sync.Mutex
	trouble map[string]string // by address
}

// dial connects to a member.
func (d *dials) dial(ctx context.Context, address string) (net.Conn, error) {
	network := "tcp"
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		network, address = "unix", path
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case err == nil:
		delete(d.trouble, address)
	case ctx.Err() == nil: // else it was given up
		d.trouble[address] = err.Error()
	}
	return conn, err
}

// absent says why there is no connection, if the last try has failed at each member that was tried since.
func (d *dials) absent() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.trouble) == 0 {
		return nil
	}
	return fmt.Errorf("no connection to etcd: %s", strings.Join(slices.Sorted(maps.Values(d.trouble)), "; "))
}

// Connect makes a client for [New], as clientv3.New does, with two differences. The client
// notices that a member hangs, unless config sets DialKeepAliveTime itself: it asks after 10 s
// of silence, and waits for 2 s. And where config has a user and a password, all calls of the client share
// one authentication, which goes on when a call has given up: so a process has a new token soon
// after its token has ended, also where many processes need one. It returns the error of
// clientv3.New. Close the client after the store.
func Connect(config clientv3.Config) (*clientv3.Client, error) {
	if config.DialKeepAliveTime == 0 {
		config.DialKeepAliveTime, config.DialKeepAliveTimeout = keepAlive, keepAliveWait
	}
	if config.Context == nil {
		config.Context = context.Background()
	}
	d := &dials{trouble: map[string]string{}}
	config.Context = context.WithValue(config.Context, connected{}, d)
	dialer := []grpc.DialOption{grpc.WithContextDialer(d.dial)}
	if os.Getenv("HTTPS_PROXY")+os.Getenv("https_proxy") != "" {
		dialer = nil // the dialer of gRPC goes through the proxy
	}
	config.DialOptions = slices.Concat(dialer, config.DialOptions, []grpc.DialOption{grpc.WithChainUnaryInterceptor(new(login).intercept)})
	return clientv3.New(config)
}

// login is the authentication of a client.
type login struct {
	mu    sync.Mutex
	under *attempt // the last one
}

// attempt is an authentication under way, or its outcome.
type attempt struct {
	done  chan struct{}
	reply *etcdserverpb.AuthenticateResponse
	err   error
	ended time.Time
	used  bool // a caller has got it
}

// intercept has calls that authenticate share one attempt.
func (l *login) intercept(
	ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption,
) error {
	to, ok := reply.(*etcdserverpb.AuthenticateResponse)
	if !ok {
		return invoker(ctx, method, req, reply, cc, opts...)
	}
	a := l.join(func(a *attempt) {
		long, cancel := context.WithTimeout(context.WithoutCancel(ctx), loginWait)
		defer cancel()
		a.err = invoker(long, method, req, a.reply, cc) // opts are of one call
	})
	select {
	case <-a.done:
	case <-ctx.Done():
		return ctx.Err()
	}
	l.mu.Lock()
	a.used = true
	l.mu.Unlock()
	if a.err == nil {
		to.Header, to.Token = a.reply.Header, a.reply.Token
	}
	return a.err
}

// join returns the attempt that is under way, or has just got a token that no caller has used.
// Else it begins one.
func (l *login) join(run func(*attempt)) *attempt {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a := l.under; a != nil && (a.ended.IsZero() || a.err == nil && !a.used && time.Since(a.ended) < loginFresh) {
		return a
	}
	a := &attempt{done: make(chan struct{}), reply: &etcdserverpb.AuthenticateResponse{}}
	l.under = a
	go func() {
		run(a)
		l.mu.Lock()
		defer l.mu.Unlock()
		a.ended = time.Now()
		close(a.done)
	}()
	return a
}
