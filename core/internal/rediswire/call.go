package rediswire

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// call is a command and the requests that share it.
type call struct {
	requests []*Request
	args     []any     // room for the arguments of several
	cmd      redis.Cmd // in place, so that it costs no allocation; go-redis has let go of it when it returns
	first    noRetry   // is cmd
	second   noRetry   // the command behind it, if there is one
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

// send puts the command of a call into a pipeline.
func (c *call) send(ctx context.Context, pipe redis.Pipeliner) {
	c.command(ctx)
	c.first.Cmder = &c.cmd
	_ = pipe.Process(ctx, &c.first)
	if second := c.requests[0].second; second != nil {
		c.second.Cmder = second
		_ = pipe.Process(ctx, &c.second)
	}
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

// common reports whether all requests have the same arguments behind their own.
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

// ended tells the requests of a call what has become of it. err is what became of
// the whole pipeline.
func (c *call) ended(err error, acked bool) {
	val, failure := outcome(&c.cmd, err)
	c.cmd, c.first, c.second = redis.Cmd{}, noRetry{}, noRetry{}
	clear(c.args)
	n, first := len(c.requests), c.requests[0].lock
	fate := fateOf(failure)
	apart := n > 1 && (fate == refused || fate == failed) // perhaps because of one of the keys
	for i, r := range c.requests {
		c.requests[i] = nil
		if apart {
			r.alone, r.Ambiguous = true, r.Ambiguous || fate == failed
			r.send()
			continue
		}
		r.Unacked = r.Write && !acked
		own := failure
		if r.Val = nil; own == nil {
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

// outcome returns the reply of a command in a pipeline, or its error. err is the error
// of the whole pipeline.
func outcome(cmd *redis.Cmd, err error) (any, error) {
	switch val, own := cmd.Val(), cmd.Err(); {
	case own != nil:
		return nil, own
	case err != nil && val == nil:
		return nil, err // a pipeline that failed before its commands
	default:
		return val, nil
	}
}

// part is the i-th of the n replies that a script returned in one. If the list has
// another length or comes from another script, the answer is unknown and the reply is
// nil.
func (s *Script) part(val any, i, n int) (any, error) {
	if n == 1 {
		return val, nil
	}
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
