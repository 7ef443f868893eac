package rediswire

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// pipeline is a connection, and the buffers for a batch.
type pipeline struct {
	link  *link
	batch []*Request
	calls []call // the first n are for this batch
	n     int
	works bool // the last batch had its answers
	mixed bool // it had requests of several callers; not that of a caller and its release ([Request.DoWithRelease])

	unwanted []*Request // that were taken out of the queue and are not sent
}

// dismiss finishes the unwanted requests of a pipeline.
func (p *pipeline) dismiss() {
	for _, r := range p.unwanted {
		r.finish(errUnwanted)
	}
	clear(p.unwanted)
	if p.unwanted = p.unwanted[:0]; cap(p.unwanted) > maxBatch {
		p.unwanted = nil
	}
}

// exec sends the batch and gives each request its outcome.
func (p *pipeline) exec(ctx context.Context, q *pipelines) {
	if q.bounded {
		var cancel context.CancelFunc
		ctx, cancel = p.bound(ctx)
		defer cancel()
	}
	write := false
	p.n = 0
	together := len(p.batch) > 1 && q.keyspace.shared()
	for _, r := range p.batch {
		p.add(r, together)
		write = write || r.Write
	}
	p.link.shares.Store(p.n < len(p.batch))
	p.link.pin(ctx)
	for i := range p.calls[:p.n] {
		c := &p.calls[i]
		c.command(ctx)
		c.first.Cmder = &c.cmd
		_ = p.link.pipe.Process(ctx, &c.first)
		if second := c.requests[0].second; second != nil {
			c.second.Cmder = second
			_ = p.link.pipe.Process(ctx, &c.second)
		}
	}
	var wait *redis.IntCmd
	if write = write && q.ack.replicas > 0; write {
		wait = q.ack.ask(ctx, p.link.pipe)
	}
	err := p.roundTrip(ctx)
	if err != nil {
		p.link.unpin() // some errors make go-redis give the connection up
	}
	if at := p.link.dialed(); !at.IsZero() {
		for _, r := range p.batch {
			r.connected = at
		}
	}
	works := err == nil || IsReply(err)
	switch {
	case q.patience == 0 || works == p.works:
	case works:
		q.standing.Add(1)
	default:
		q.standing.Add(-1)
	}
	p.works = works
	acked := !write || q.ack.given(wait)
	for i := range p.calls[:p.n] {
		p.calls[i].ended(err, acked)
	}
	clear(p.batch)
}

// roundTrip sends the commands and reads their replies. go-redis takes the form of a reply
// for granted: another one makes it panic, and is an error here. It would otherwise come
// out of a caller's Lock. A server may recover such a panic, and the other requests of the
// batch would be left without an outcome. go-redis has given the connection up by then.
func (p *pipeline) roundTrip(ctx context.Context) (err error) {
	defer func() {
		if why := recover(); why != nil {
			err = fmt.Errorf("%w: %w", ErrReply, fmt.Errorf("go-redis panicked: %v", why))
		}
	}()
	if p.link.pipe.Len() == 1 {
		// A pipeline of one is a command, and allocates more.
		p.link.pipe.Discard()
		return p.link.pinned.Process(ctx, &p.calls[0].first)
	}
	_, err = p.link.pipe.Exec(ctx)
	return err
}

// bound returns the context of a pipeline of renewals. The client's timeouts bound it, and
// the last of the deadlines of the renewals; but not while it connects. A connection takes
// several round trips, and a connection that was given up with each renewal would never stand.
func (p *pipeline) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if p.link.pinned == nil {
		return ctx, func() {}
	}
	var last time.Time
	for _, r := range p.batch {
		if r.Deadline.IsZero() {
			return ctx, func() {}
		}
		if r.Deadline.After(last) {
			last = r.Deadline
		}
	}
	return context.WithDeadline(ctx, last)
}

// callArgs is how many arguments of a command come before a script's own: its
// name, the script and the number of keys.
const callArgs = 3

// call is a command and the requests that share it.
type call struct {
	requests []*Request
	args     []any     // room for the arguments of several
	cmd      redis.Cmd // in place, so that it costs no allocation; go-redis has let go of it when it returns
	first    noRetry   // is cmd
	second   noRetry   // the appended command, if there is one
}

// add finds a request a call, which it shares or has for itself.
func (p *pipeline) add(r *Request, together bool) {
	if together && r.shares() {
		for i := p.n - 1; i >= 0; i-- {
			c := &p.calls[i]
			if first := c.requests[0]; len(c.requests) < maxShare && first.shares() && first.like(r) {
				c.requests = append(c.requests, r)
				return
			}
		}
	}
	if p.n == len(p.calls) {
		p.calls = append(p.calls, call{})
	}
	p.calls[p.n].requests = append(p.calls[p.n].requests[:0], r)
	p.n++
}

// command makes the command of a call.
func (c *call) command(ctx context.Context) {
	first := c.requests[0]
	if len(c.requests) == 1 {
		c.cmd = *first.script.evalWith(ctx, first.full, first.nkeys, first.args)
		return
	}
	own, end := callArgs+first.nkeys, len(first.args) // the arguments of each that are not keys
	if c.common() {
		end -= first.common
	}
	c.args = append(c.args[:0], nil, nil, nil)
	for _, r := range c.requests {
		c.args = append(c.args, r.args[callArgs:own]...)
	}
	for _, r := range c.requests {
		c.args = append(c.args, r.args[own:end]...)
	}
	c.args = append(c.args, first.args[end:]...)
	c.cmd = *first.script.evalWith(ctx, first.full, first.nkeys*len(c.requests), c.args)
}

// evalWith makes the command that runs a script; the first callArgs of args are
// left for it.
func (s *Script) evalWith(ctx context.Context, full bool, nkeys int, args []any) *redis.Cmd {
	args[0], args[1], args[2] = "evalsha", &s.sha, nkeys
	if full {
		args[0], args[1] = "eval", &s.source
	}
	return redis.NewCmd(ctx, args...)
}

// noRetry is a command that go-redis must not send a second time by itself. All
// commands of the store are such: in a pipeline that mixes both kinds go-redis would
// send each kind alone.
type noRetry struct{ redis.Cmder }

// NoRetry implements redis.Cmder.
func (*noRetry) NoRetry() bool { return true }

// common reports whether all requests have the same arguments after their own.
func (c *call) common() bool {
	first := c.requests[0]
	begin := len(first.args) - first.common
	for _, r := range c.requests[1:] {
		for i, arg := range first.args[begin:] {
			if !equal(arg, r.args[begin+i]) {
				return false
			}
		}
	}
	return true
}

// equal reports whether two arguments, which are pointers, mean the same. Of other types
// than these it does not know.
func equal(a, b any) bool {
	switch a := a.(type) {
	case *string:
		b, ok := b.(*string)
		return ok && *a == *b
	case *int64:
		b, ok := b.(*int64)
		return ok && *a == *b
	}
	return false
}

// ended gives the requests of a call their outcomes. err is the outcome of the whole
// pipeline.
func (c *call) ended(err error, acked bool) {
	val, failure := c.cmd.Val(), c.cmd.Err()
	if failure == nil && val == nil {
		failure = err // of a pipeline that failed before its commands
	}
	if failure != nil {
		val = nil
	}
	c.cmd, c.first, c.second = redis.Cmd{}, noRetry{}, noRetry{}
	clear(c.args)
	n, first := len(c.requests), c.requests[0].lock
	apart, ambiguous := false, false
	if n > 1 && failure != nil {
		fate := fateOf(failure)
		apart, ambiguous = fate == refused || fate == failed, fate == failed // perhaps because of one key
	}
	for i, r := range c.requests {
		c.requests[i] = nil
		if apart {
			r.alone, r.Ambiguous = true, r.Ambiguous || ambiguous
			r.send()
			continue
		}
		r.Unacked = r.Write && !acked
		own := failure
		if r.Val = val; own == nil && n > 1 {
			r.Val, own = r.script.part(val, i, n)
		}
		if i > 0 && own == nil && r.deniesOwner() {
			// Perhaps the call was carried out by a server that has not this key.
			r.alone, r.beside = true, first
			r.send()
			continue
		}
		r.tried(own)
	}
}

// part is the i-th of the n replies, at least two, that a script returned in one. If the list has
// another length or comes from another script, the answer is unknown and the reply is
// nil.
func (s *Script) part(val any, i, n int) (any, error) {
	list, _ := val.([]any)
	if len(list) != 1+n || list[0] != any(s.several) {
		return nil, nil //nolint:nilnil // see above
	}
	if text, ok := list[1+i].(string); ok {
		return nil, refusal(text)
	}
	return list[1+i], nil
}

// refusal is an error of one request in a call of several, as a script sends it.
type refusal string

// RedisError implements redis.Error.
func (refusal) RedisError() {}

func (r refusal) Error() string { return string(r) }
