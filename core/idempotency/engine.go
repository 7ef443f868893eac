package idempotency

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"sync"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/internal/logs"
	"github.com/interlock-go/interlock/core/reason"
)

// storeWait bounds how long a request waits for one answer of the store. Work that is
// still necessary goes on in the background.
const storeWait = 2 * time.Second

// Engine makes endpoints idempotent. [New] makes one; the zero value is not usable.
// Use one for a process and store, and [Engine.With] for endpoints that differ. It
// is immutable and safe for concurrent use. Call [Engine.Close] at the end.
type Engine struct {
	*shared
	config  *config
	lines   logs.Requests
	unknown noted // the records that logUnknown has logged
	nesting nesting
}

// shared is what an engine and those made of it by [Engine.With] have in common.
type shared struct {
	store      Store
	waiters    waiters
	watchdog   watchdog
	background background
	drain      drain
	log        logs.Log
	work       sync.WaitGroup // goroutines
}

// newToken makes the token of a claim: the hash of 128 secret bits, which the ticket has if the claim
// is handed over. A reader of the store, or of another ticket, cannot make the ticket.
func newToken() (secret *[16]byte, token string) {
	secret = new([16]byte)
	rand.Read(secret[:]) // never fails (crypto/rand, Go 1.24)
	return secret, tokenOf(*secret)
}

// tokenOf returns the token that a secret belongs to.
func tokenOf(secret [16]byte) string {
	const begin = "interlock claim\n"
	var room [len(begin) + 16]byte
	sum := sha256.Sum256(append(append(room[:0], begin...), secret[:]...))
	return hex.EncodeToString(sum[:16])
}

// New makes an [Engine] on a store. It returns an error that matches
// [core.ErrConfig] for a nil store, for an option that cannot work, or if neither
// [Scope] nor [Global] is given.
//
// Services may share one store, and with it their locks, and a gateway may hand the
// client's key on to them. Then give the engine of each service its name ([Service]).
// Without names the gateway's record has the key, and the service refuses
// the gateway's request as another request with a used key
// ([reason.KeyReused]). The same holds for a handler that calls another
// idempotent endpoint with the key of the request it serves, in this process or
// elsewhere. A key of [DownstreamKey] is another key and needs no name. Another prefix
// of the store would part the locks as well.
func New(store Store, opts ...Option) (*Engine, error) {
	if store == nil {
		return nil, fmt.Errorf("%w: store is nil; redisstore.New makes one", core.ErrConfig)
	}
	c, err := defaults().with(opts)
	if err == nil {
		err = c.fits(store)
	}
	if err != nil {
		return nil, err
	}
	s := &shared{store: store}
	s.watchdog.init(store, s.work.Go)
	s.background.init(store, &s.watchdog, &s.drain, &s.log, c.backlog, s.work.Go)
	return newEngine(s, &c), nil
}

// With returns an [Engine] for an endpoint that differs in some options. It shares
// everything else with e, and is closed with e. It panics on a bad option, as
// [core.Serialize] does, because it belongs to the registration of routes.
func (e *Engine) With(opts ...Option) *Engine {
	c, err := e.config.with(opts)
	if err == nil {
		err = c.fits(e.store)
	}
	if err != nil {
		panic(err)
	}
	return newEngine(e.shared, &c)
}

func newEngine(s *shared, c *config) *Engine {
	if !c.told {
		c.observer = nil // not of a guard from before
		if c.guard != nil {
			c.observer = c.guard.Observer()
		}
	}
	return &Engine{shared: s, config: c, lines: logs.Requests{Log: &s.log}}
}

// Name returns the name of the endpoint; see the option [Name].
func (e *Engine) Name() string { return e.config.name }

// Retention returns how long an answer is kept; see the option [Retention].
func (e *Engine) Retention() time.Duration { return e.config.retention }

// Profile returns the profile of the endpoint; see the option [Profile].
func (e *Engine) Profile() reason.Profile { return e.config.profile }

// Guard returns the guard given to [Under], or nil. A start-up check of an adapter compares
// its placeholders with the endpoint.
func (e *Engine) Guard() *core.Guard { return e.config.guard }

// Waits reports whether a request may wait: for another one with its key ([WaitReplay]), or for the
// lock of the rule ([Under]). An adapter can refuse such an engine where a wait keeps others from
// their work.
func (e *Engine) Waits() bool {
	return e.config.wait > 0 || e.config.guard != nil && e.config.guard.Waits()
}

// Close drains the engine. It refuses new requests ([reason.Closing]). Requests under
// way go on, and so do outstanding writes to the store, until all is done or ctx ends.
// If ctx ends first, the contexts of handlers that still run end with cause
// [core.ErrClosed], their claims end with their leases, and Close returns the cause of
// ctx. Close does not close the store.
//
// Call Close after the server's Shutdown, which does not wait for handlers inside an
// http.TimeoutHandler. Call it before [core.Locker.Close] and the Close of the store:
// if an answer cannot be stored, a retry makes the payment again.
//
// The engine gives up a claim that was not answered, and may yet be granted, again
// and again for a lease. Close gives it up once more, and does not wait: if the
// claim is granted even later, its key stays in flight until the lease ends. Under
// [Strict], where it would be an unknown outcome, Close waits for up to a lease.
func (e *Engine) Close(ctx context.Context) error {
	e.drain.close()
	e.background.hurry()
	var err error
	if empty := e.drain.wait(); empty != nil {
		select {
		case <-empty:
		case <-ctx.Done():
			err = fmt.Errorf("interlock: closing with requests under way or answers not stored: %w", context.Cause(ctx))
		}
	}
	e.background.close()
	e.watchdog.close()
	done := make(chan struct{})
	go func() {
		e.work.Wait() // a request on its way ends by its own deadline
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
	return err
}

// drain counts what [Engine.Close] waits for: requests and jobs of the background.
type drain struct {
	mu      sync.Mutex
	n       int
	closing bool
	empty   chan struct{} // made by a Close that waits
}

// admit counts a request, unless the engine is closing.
func (d *drain) admit() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closing {
		return false
	}
	d.n++
	return true
}

// add counts a job.
func (d *drain) add() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.n++
}

// done counts one less.
func (d *drain) done() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.n--
	if d.n == 0 && d.empty != nil {
		close(d.empty)
		d.empty = nil
	}
}

// close refuses new requests.
func (d *drain) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closing = true
}

// wait returns a channel that is closed when nothing is left; nil if that is so now.
func (d *drain) wait() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.n > 0 && d.empty == nil {
		d.empty = make(chan struct{})
	}
	return d.empty
}
