package rediswire

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core/internal/carrier"
	"github.com/interlock-go/interlock/core/internal/inflight"
)

const (
	// maxTries is how often a request is sent that failed on the way; on a Cluster
	// more often until the topology was read again.
	maxTries = 3
	// firstPause is the pause before the second try; it doubles.
	firstPause = 10 * time.Millisecond
	maxPause   = 200 * time.Millisecond
)

// Request is one script call on its way: sent, sent again where that helps, and
// awaited by a caller, which may leave. [Request.Make] begins one.
type Request struct {
	// Deadline is when nothing is sent again; zero: maxTries decides.
	Deadline time.Time
	// Asks says that it asks for something new: of no use without its caller.
	Asks bool
	// Stubborn says to send it again until the deadline, after any error.
	Stubborn bool
	// Least is how often a request that fails is sent at least, also if its tries take so
	// long that the deadline has passed: a try over a connection that a gateway has
	// forgotten lasts as long as a try may.
	Least int
	// Write says that replicas have to acknowledge it, if that is asked for.
	Write bool
	// Late is called with the outcome if the caller has left.
	Late func()

	// Val is the script's reply, and Err the error in its place.
	Val any
	Err error
	// Sent is the time of the first try.
	Sent time.Time
	// Ambiguous says that a try may have been, or may yet be, executed.
	Ambiguous bool
	// Unacked says that too few replicas acknowledged it.
	Unacked bool

	store   *Store
	route   *route
	script  *Script
	nkeys   int
	full    bool                  // send the source, not the name
	common  int                   // so many of the last arguments others may have as well
	args    []any                 // the first callArgs are left for the command
	lock    string                // the key that says which server
	behind  []any                 // the command right after it, in the same pipeline; see pair
	second  *redis.StringSliceCmd // nil: nothing
	alone   bool                  // it goes without that, and in no call with others
	beside  string                // the first key of a call that had another answer; see keyspace.look
	renewal *Renewal              // that it is part of, in a round; nil: of none

	connected time.Time // when the connection stood that was made for it; zero: none was

	tries    int
	failed   time.Time // when the first try did, on a Cluster; zero: none
	stale    bool      // the last try went by a topology of before that
	pause    time.Duration
	once     bool // do not send again what failed
	detached bool // it has no caller that waits; its outcome goes to Late

	caller inflight.Caller
	done   chan *Request
	// gone is closed when the caller has to leave; nil: it waits until the end. A batch under way
	// ends at the instant leaves, if that is not zero, and gone is closed a little later.
	gone   <-chan struct{}
	leaves time.Time
}

// Make begins a request to the server that has the key, which is sent soon. A request that has ended can
// begin anew: all but its channel and Late is as new. The arguments of the script
// follow by [Request.Keys] and [Request.Args]; room is for them, so that they cost
// no allocation.
func (r *Request) Make(s *Store, script *Script, key string, room []any) *Request {
	done, late := r.done, r.Late
	if done == nil {
		done = make(chan *Request, 1)
	}
	*r = Request{store: s, route: &s.requests, script: script, lock: key, args: room[:callArgs], done: done, Late: late, Sent: time.Now()}
	return r
}

// Keys appends keys. Keys and arguments are pointers to strings and numbers, since a
// string or a number in an interface is an allocation.
func (r *Request) Keys(keys ...any) *Request {
	r.args = append(r.args, keys...)
	r.nkeys += len(keys)
	return r
}

// Args appends arguments. They follow the keys.
func (r *Request) Args(args ...any) *Request {
	r.args = append(r.args, args...)
	return r
}

// Detach makes it a request for which no caller waits: the outcome goes to Late.
func (r *Request) Detach(late func()) *Request {
	r.Late, r.detached = late, true
	r.caller.Leave()
	return r
}

// Start sends the request for the first time.
func (r *Request) Start() {
	if r.route.direct == nil && r.route.unread() {
		go r.send() // finding the server takes further requests
		return
	}
	r.send()
}

// Do sends the request for the first time and waits for the outcome, as [Request.Start]
// and [Request.Wait] do. Where a pipeline is free, the caller's own goroutine sends the
// request and reads the reply, so that no other goroutine has to be woken: on a machine
// with cores that sleep between requests, waking takes longer than the server.
func (r *Request) Do(ctx context.Context, deadline time.Time) bool {
	r.gone = ctx.Done()
	r.leaves, _ = ctx.Deadline()
	if r.route.direct == nil && r.route.unread() {
		go r.send() // finding the server takes further requests
	} else if q := r.prepare(); q != nil && !q.sendHere(ctx, deadline, r) {
		q.submit(r)
	}
	select {
	case <-r.done: // the caller itself has read the reply
		return true
	default:
		return r.Wait(ctx, deadline)
	}
}

// DoWithRelease is [Request.Do] together with the release of a lock, in one round trip: it
// sends the request, calls release, and waits for the outcome of both. release may be nil.
//
// One server gets both in one pipeline: the request is only queued (pipelines.add), and
// leaves with the next request of any caller (pipelines.lend, pipelines.dispatch). That is
// the release, unless the lock is handed over in memory; then pipelines.flush sends the
// request. The nodes of a Cluster get the two at the same time. It reports false if the
// caller has to leave before, as [Request.Wait] does.
func (r *Request) DoWithRelease(ctx context.Context, release func(context.Context)) bool {
	if release == nil {
		return r.Do(ctx, r.Deadline)
	}
	q := r.route.direct
	if q == nil { // a Cluster
		r.Start()
		release(ctx)
		return r.Wait(ctx, r.Deadline)
	}
	r.prepare()
	q.add(r)
	begin := time.Now()
	release(context.WithValue(ctx, carrier.Paired, true))
	q.flush(r, begin)
	return r.Wait(ctx, r.Deadline)
}

// send sends it to the server that has the key.
func (r *Request) send() {
	if q := r.prepare(); q != nil {
		q.submit(r)
	}
}

// prepare begins a try and finds the pipelines that it goes by. If there are none,
// the try has failed.
func (r *Request) prepare() *pipelines {
	r.tries++
	r.stale = !r.failed.IsZero() && !r.route.topology.since(r.failed)
	if r.behind != nil {
		r.pair()
	}
	if q := r.route.direct; q != nil {
		return q
	}
	q, err := r.route.node(r.lock)
	if err != nil {
		r.tried(err)
		return nil
	}
	return q
}

// shares reports whether the request may go in one call with others like it.
func (r *Request) shares() bool {
	return r.script.several != "" && !r.alone && r.behind == nil
}

// like reports whether two requests that may share a call may share one with each
// other.
func (r *Request) like(other *Request) bool {
	return r.script == other.script && r.full == other.full && r.nkeys == other.nkeys &&
		len(r.args) == len(other.args) && r.common == other.common
}

// tried takes the outcome of a try.
func (r *Request) tried(err error) {
	if err == nil {
		if r.second != nil && !r.fits() {
			r.alone = true
			r.send()
			return
		}
		if r.beside != "" && !r.deniesOwner() {
			r.store.keyspace.look(r.beside, r.lock)
		}
		r.finish(nil)
		return
	}
	again := r.tries < maxTries || r.Stubborn
	switch fate := fateOf(err); fate {
	case noScript:
		// It was not executed, and will be found from now on.
		if !r.full {
			r.full = true
			r.send()
			return
		}
		again = false
	case elsewhere:
		if r.route.cluster == nil {
			r.finish(fmt.Errorf("%w: %w", err, errNode))
			return
		}
		if r.Write && r.store.ack.replicas > 0 && !r.route.renews {
			// The way there has no room for a question to the replicas. It is
			// tried again when the topology is known.
			r.store.reload()
			r.finish(&movingError{err})
			return
		}
		// The cluster client knows where, or learns it.
		go r.redirect()
		return
	case refused:
		again = false
	case notReady:
		// Only a stubborn request waits for the server; others let their caller
		// decide.
		again = r.Stubborn
		r.store.reconsider(err)
	case unsent, unknown, failed:
		r.Ambiguous = r.Ambiguous || fate != unsent
		again = r.awaitsTopology() || again
		r.store.reload()
	}
	r.pause = min(max(2*r.pause, firstPause), maxPause)
	if again && r.tries >= r.Least && !r.Deadline.IsZero() && time.Now().Add(r.pause).After(r.Deadline) {
		again = false
	}
	if !again || r.once || r.store.shut.Load() {
		r.finish(err)
		return
	}
	time.AfterFunc(r.pause, r.resend)
}

// resend sends the request once more. A caller that has to leave may have interrupted its own
// request, and not have left yet: until it has, nothing is sent for it.
func (r *Request) resend() {
	if r.Asks && r.caller.Waits() && r.hasToLeave() {
		time.AfterFunc(r.pause, r.resend)
		return
	}
	r.send()
}

// hasToLeave reports whether the caller of the request has to leave.
func (r *Request) hasToLeave() bool {
	select {
	case <-r.gone:
		return true
	default:
		return !r.leaves.IsZero() && !time.Now().Before(r.leaves)
	}
}

// finish ends the request: it wakes the caller or, if the caller has left, calls late.
func (r *Request) finish(err error) {
	r.Err = err
	if r.caller.Serve() {
		r.done <- r
		return
	}
	if r.Late != nil {
		r.Late()
	}
}

// Wait waits for the outcome, but not longer than ctx or the deadline allow. It
// reports false when the caller has to leave; the request goes on.
func (r *Request) Wait(ctx context.Context, deadline time.Time) bool {
	select {
	case <-r.done: // no timer is needed
		return true
	default:
	}
	_, ok := inflight.Wait(ctx, deadline, &r.caller, r.done)
	return ok
}

// noteTrip notes the round trip of a request that was answered. It does not include the making of
// a connection: that takes several round trips, and more with TLS. A request that was sent again
// alone, as after a redirection, has taken several.
func (s *Store) noteTrip(r *Request) {
	if r.Err != nil || r.Ambiguous || r.alone {
		return
	}
	begin := r.Sent
	if r.connected.After(begin) {
		begin = r.connected
	}
	s.trips.Note(time.Since(begin))
}

// Flag is an argument of a script: a constant, since those take no allocation.
func Flag(set bool) any {
	if set {
		return "1"
	}
	return "0"
}

// Words returns what follows the name of the script in its reply, or nil.
func (r *Request) Words(script string) []any {
	all, ok := r.Val.([]any)
	if !ok || len(all) < 2 || all[0] != any(script) {
		return nil
	}
	return all[1:]
}

// Behind appends a command of two strings to the request, in the same pipeline. The script
// gets one argument more, after the arguments of [Request.Args]: "1" if the command is not
// there. A reply "completed TOKEN" promises that the first string is TOKEN.
func (r *Request) Behind(command []any) *Request {
	r.behind = command
	return r.Args(nil)
}

// pair prepares a try of a request with an appended command: that command, and the
// script's last argument, which says whether there is one. The way of a redirection has
// room for the script alone.
func (r *Request) pair() {
	r.args[len(r.args)-1] = Flag(r.alone)
	r.second = nil
	if !r.alone {
		r.second = redis.NewStringSliceCmd(context.Background(), r.behind...)
	}
}

// fits reports whether the second reply keeps the promise of the script's reply. It is
// not if the connection broke between the two, or if the record was replaced there: a
// pipeline is no transaction. A token belongs to one request alone, so a response that
// came with the right one is the right one.
func (r *Request) fits() bool {
	token, completed := r.Completed()
	if !completed {
		return true
	}
	read := r.second.Val()
	return r.second.Err() == nil && len(read) == 2 && read[0] == token
}

// Completed returns the token of a claim. The response that follows the script's reply
// belongs to it.
func (r *Request) Completed() (token string, completed bool) {
	if r.second == nil {
		return "", false
	}
	reply, _ := r.Val.(string)
	return strings.CutPrefix(reply, "completed ")
}

// Second returns the second string of the appended command.
func (r *Request) Second() string { return r.second.Val()[1] }
