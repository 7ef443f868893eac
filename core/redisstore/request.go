package redisstore

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

const (
	// maxTries is how often a request is sent that failed on the way; on a Cluster
	// more often until the topology was read again.
	maxTries = 3
	// firstPause is the pause before the second try; it doubles.
	firstPause = 10 * time.Millisecond
	maxPause   = 200 * time.Millisecond
)

// request is one script call on its way: sent, sent again where that helps, and
// awaited by a caller, which may leave.
type request struct {
	store  *Store
	route  *route
	script *script
	nkeys  int
	full   bool   // send the source, not the name
	args   []any  // the first callArgs are left for the command
	lock   string // the key that says which server
	behind []any  // what goes right behind it, in the same pipeline; see pair
	second noRetrySlice
	alone  bool // it goes without that, and in no call with others
	index  int  // of the lease that it renews, in its batch

	first     time.Time // of the first try
	tries     int
	failed    time.Time // when the first try did, on a Cluster; zero: none
	stale     bool      // the last try went by a topology of before that
	pause     time.Duration
	deadline  time.Time // after which nothing is sent again; zero: maxTries decides
	stubborn  bool      // send again until the deadline, whatever the error says
	once      bool      // do not send again what failed
	asks      bool      // it asks for something new: of no use without its caller
	detached  bool      // it has no caller that waits; its outcome goes to late
	ambiguous bool      // a try may have been, or may yet be, executed
	write     bool      // replicas have to acknowledge it, if that is asked for
	unacked   bool      // and too few did

	val   any // the script's reply
	err   error
	state atomic.Int32 // of stateWaited, stateDone, stateLeft
	done  chan *request
	late  func() // called if the caller has left
}

const (
	stateWaited int32 = iota
	stateDone
	stateLeft
)

// begin makes a request of one that is over, or was just made: all but the
// channel and late is as new.
func (r *request) begin(s *Store, script *script, nkeys int, args []any, lock string) {
	done, late := r.done, r.late
	*r = request{store: s, route: &s.requests, script: script, nkeys: nkeys, args: args, lock: lock, done: done, late: late}
}

// start sends the request for the first time.
func (r *request) start() {
	r.first = time.Now()
	if r.route.unread() {
		go r.send() // finding the server takes requests of its own
		return
	}
	r.send()
}

// send sends it to the server that has the key.
func (r *request) send() {
	if q := r.prepare(); q != nil {
		q.submit(r)
	}
}

// prepare begins a try and finds the pipelines that it goes by. If there are none,
// the try has failed.
func (r *request) prepare() *pipelines {
	r.tries++
	r.stale = !r.failed.IsZero() && !r.route.topology.since(r.failed)
	r.pair()
	q, err := r.route.to(r.lock)
	if err != nil {
		r.sent(err)
		return nil
	}
	return q
}

// shares reports whether the request may go in one call with others like it.
func (r *request) shares() bool {
	return r.script.several != "" && !r.alone && r.behind == nil
}

// like reports whether two requests that may share a call may share one with each
// other.
func (r *request) like(other *request) bool {
	return r.script == other.script && r.full == other.full && r.nkeys == other.nkeys && len(r.args) == len(other.args)
}

// sent takes the outcome of a try.
func (r *request) sent(err error) {
	if err == nil {
		if !r.fits() {
			r.alone = true
			r.send()
			return
		}
		r.finish(nil)
		return
	}
	again := r.tries < maxTries
	if r.stubborn {
		again = true
	}
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
			r.finish(fmt.Errorf("this server is a node of a Cluster, which needs a redis.ClusterClient: %w", err))
			return
		}
		if r.write && r.store.ack.replicas > 0 && !r.route.renews {
			// The way there has no room for a question to the replicas. It is
			// tried again when the topology is known.
			r.store.reload()
			r.finish(&movingError{err})
			return
		}
		// The cluster client knows where, or learns it.
		go r.follow()
		return
	case refused:
		again = false
	case notReady:
		// Only a stubborn request waits for the server; others let their caller
		// decide.
		again = r.stubborn
		r.store.reconsider(err)
	case unsent, unknown:
		r.ambiguous = r.ambiguous || fate == unknown
		again = r.awaitsTopology() || again
		r.store.reload()
	}
	r.pause = min(max(2*r.pause, firstPause), maxPause)
	if again && !r.deadline.IsZero() && time.Now().Add(r.pause).After(r.deadline) {
		again = false
	}
	if !again || r.once || r.store.shut.Load() {
		r.finish(err)
		return
	}
	time.AfterFunc(r.pause, r.send)
}

// follow sends the request through the cluster client, which follows MOVED and
// ASK.
func (r *request) follow() {
	w := r.route // the request may be another's once it is over
	w.following <- struct{}{}
	defer func() { <-w.following }()
	r.alone = true
	r.pair()
	ctx, cancel := context.Background(), context.CancelFunc(func() {})
	if w.renews && !r.deadline.IsZero() {
		ctx, cancel = context.WithDeadline(ctx, r.deadline)
	}
	defer cancel()
	cmd := r.script.evalWith(ctx, true, r.nkeys, r.args)
	err := w.cluster.Process(ctx, cmd)
	r.val = cmd.Val()
	if fateOf(err) == elsewhere && err != nil {
		// Still on the move after all redirections.
		err = &movingError{err}
	}
	r.sent(err)
}

// movingError makes a redirection that led nowhere a server that is not ready.
type movingError struct{ error }

func (e *movingError) RedisError()   {}
func (e *movingError) Error() string { return "TRYAGAIN " + e.error.Error() }

// finish ends the request: it wakes the caller or, if the caller has left, calls late.
func (r *request) finish(err error) {
	r.err = err
	if r.state.CompareAndSwap(stateWaited, stateDone) {
		r.done <- r
		return
	}
	if r.late != nil {
		r.late()
	}
}

// wait waits for the outcome, but not longer than ctx or the deadline allow. It
// reports false when the caller has to leave; the request goes on.
func (r *request) wait(ctx context.Context, deadline time.Time) bool {
	if deadline.IsZero() {
		select {
		case <-r.done:
			return true
		case <-ctx.Done():
		}
	} else {
		timer := time.NewTimer(time.Until(deadline))
		defer timer.Stop()
		select {
		case <-r.done:
			return true
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	if r.state.CompareAndSwap(stateWaited, stateLeft) {
		// finish sees that we left, and sends no token.
		return false
	}
	<-r.done // it was finished just now
	return true
}

// integer reads a script's reply that is a verdict.
func (r *request) integer() (int64, error) { return verdict(r.val, 3) }

// verdict reads what the scripts that renew, release and withdraw return: -1 to 2
// or 3. A token is none, should replies ever get out of step.
func verdict(val any, most int64) (int64, error) {
	n, ok := val.(int64)
	if !ok || n < -1 || n > most {
		return 0, errReply
	}
	return n, nil
}

var errReply = errors.New("interlock: a script's reply has an unknown form")

// acquireRequest is a request to take a lock, with room for its arguments.
type acquireRequest struct {
	request
	ask    driver.AcquireRequest
	keys   [2]string
	ms     [2]int64 // lease, fence's
	values [10]any
}

// newAcquireRequest makes one that can be used again and again: its arguments are
// pointers into itself, since a string in an interface is an allocation.
func newAcquireRequest() *acquireRequest {
	r := &acquireRequest{request: request{done: make(chan *request, 1)}}
	r.values = [10]any{
		3: &r.keys[0], 4: &r.keys[1],
		5: &r.ask.Owner, 6: &r.ms[0], 7: &r.ms[1], 8: &r.ask.Rest, 9: &r.ask.Waiter,
	}
	r.late = func() { r.ask.Late(r.reply()) }
	return r
}

// releaseRequest is a request to give up a lock, likewise.
type releaseRequest struct {
	request
	ask    driver.ReleaseRequest
	names  [2]string // lock, fence
	ms     int64     // fence's
	values [10]any
}

// reply makes the caller's reply of what the script returned.
func (r *acquireRequest) reply() (driver.Reply, error) {
	rep := driver.Reply{Sent: r.first, Ambiguous: r.ambiguous}
	if r.err != nil {
		err := wrap(r.err)
		if errors.Is(err, driver.ErrKeyOccupied) {
			r.store.sayOccupied(r.ask.Key)
		}
		return rep, err
	}
	switch v := r.val.(type) {
	case int64:
		// The other scripts answer 0 to 2, and none of that is a token: should
		// replies ever get out of step, it must not look like a grant.
		if v > 2 && r.unacked {
			rep.Ambiguous = true // the caller does not have it, the server says otherwise
			return rep, driver.ErrNotReplicated
		}
		if v > 2 {
			rep.Granted, rep.Token = true, v
			return rep, nil
		}
	case []any:
		if len(v) == 3 {
			holder, ok := v[0].(string)
			left, ok2 := v[1].(int64)
			listed, ok3 := v[2].(int64)
			if ok && ok2 && ok3 {
				rep.Holder, rep.Listed = holder, listed == 1
				rep.TTL = time.Duration(left) * time.Millisecond // PTTL: -1 for a key without expiry
				return rep, nil
			}
		}
	}
	rep.Ambiguous = true // what that server has done is unknown
	return rep, wrap(errReply)
}
