package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// rawPoll is the pause after which a raw acquire tries again. There is no lock
// library in it that would wait better.
const rawPoll = time.Millisecond

// rawLocks sends Interlock's own scripts, with a lock's logic left out: no queue,
// no watchdog, no clean-up. How they travel is what differs: on pooled
// connections, through go-redis's AutoPipeline, or through a shared pipeline.
type rawLocks struct {
	send    func(ctx context.Context, args []any) (any, error)
	async   func(ctx context.Context, args []any) *redis.Cmd // nil where send has to do
	acquire []request                                        // by key
	renew   []request
	release []request
	owners  []any // by goroutine
}

// request is the arguments of a script call; the owner's place is left open.
type request struct {
	args  []any
	owner int
}

// of is the arguments for an owner, a new slice: the client keeps what it is given.
func (r request) of(owner any) []any {
	args := append([]any(nil), r.args...)
	args[r.owner] = owner
	return args
}

func newRaw(c *child, rdb *redis.Client) (*rawLocks, error) {
	scripts, err := record(c)
	if err != nil {
		return nil, err
	}
	l := &rawLocks{}
	for _, key := range c.keys {
		l.acquire = append(l.acquire, scripts[0].forKey(key))
		l.renew = append(l.renew, scripts[1].forKey(key))
		l.release = append(l.release, scripts[2].forKey(key))
	}
	// No two goroutines of a cell share an owner: the scripts are idempotent for
	// one, and would let both in.
	first := c.Proc * c.row.workers
	for g := range c.row.workers {
		l.owners = append(l.owners, fmt.Sprintf("%032x:%d", c.Proc+1, first+g))
	}
	switch c.Library {
	case rawPooled:
		l.send = func(ctx context.Context, args []any) (any, error) { return rdb.Do(ctx, args...).Result() }
	case rawAuto:
		blocking, err := rdb.AutoPipeline()
		if err != nil {
			return nil, err
		}
		async, err := rdb.AsyncAutoPipeline()
		if err != nil {
			return nil, err
		}
		// Process and not Do, which runs a command by itself.
		process := func(p *redis.AutoPipeliner, ctx context.Context, args []any) *redis.Cmd {
			cmd := redis.NewCmd(ctx, args...)
			_ = p.Process(ctx, cmd) // the command keeps its error
			return cmd
		}
		l.send = func(ctx context.Context, args []any) (any, error) { return process(blocking, ctx, args).Result() }
		l.async = func(ctx context.Context, args []any) *redis.Cmd { return process(async, ctx, args) }
	case rawShared:
		p := &pipeline{queue: make(chan *call, 1024)}
		go p.run(rdb.Pipeline())
		l.send = p.send
	}
	return l, l.check(c.ctx)
}

// check sees that the scripts still do what is thought here: a grant is a number
// and a refusal is not.
func (l *rawLocks) check(ctx context.Context) error {
	mine, err := l.send(ctx, l.acquire[0].of("check:1"))
	if err != nil {
		return err
	}
	other, err := l.send(ctx, l.acquire[0].of("check:2"))
	if err != nil {
		return err
	}
	for _, r := range []request{l.renew[0], l.release[0]} {
		if reply, err := l.send(ctx, r.of("check:1")); err != nil || reply != int64(1) {
			return fmt.Errorf("the raw baseline does not know the scripts any more: %v to %v, %w", reply, r.args, err)
		}
	}
	if !isGrant(mine) || isGrant(other) {
		return fmt.Errorf("the raw baseline does not know the scripts any more: granted is %v, refused %v", mine, other)
	}
	return nil
}

// isGrant tells the token of a grant from the description of the holder.
func isGrant(reply any) bool {
	_, ok := reply.(int64)
	return ok
}

func (l *rawLocks) lock(ctx context.Context, g, k int) (any, error) {
	for {
		reply, err := l.send(ctx, l.acquire[k].of(l.owners[g]))
		if err != nil || isGrant(reply) {
			return nil, err
		}
		timer := time.NewTimer(rawPoll)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, ctx.Err()
		}
	}
}

// unlock checks the reply, or a lock that was lost would go unnoticed.
func (l *rawLocks) unlock(g, k int, _ any) error {
	reply, err := l.send(context.Background(), l.release[k].of(l.owners[g]))
	if err == nil && reply != int64(1) {
		err = errors.New("raw: released what was not held")
	}
	return err
}

// renewAll renews the key of each goroutine: all at once where they need not be
// waited for one by one.
func (l *rawLocks) renewAll(ctx context.Context, held []any) (failed int) {
	if l.async == nil {
		return countFailed(len(held), func(i int) error {
			reply, err := l.send(ctx, l.renew[i].of(l.owners[i]))
			if err == nil && reply != int64(1) {
				err = errNotRenewed
			}
			return err
		})
	}
	cmds := make([]*redis.Cmd, len(held))
	for i := range cmds {
		cmds[i] = l.async(ctx, l.renew[i].of(l.owners[i]))
	}
	for _, cmd := range cmds {
		if reply, err := cmd.Result(); err != nil || reply != int64(1) {
			failed++
		}
	}
	return failed
}

// pipeline sends the calls of all goroutines in plain pipelines: calls that come
// while one is under way go with the next. It is the least that sharing takes.
type pipeline struct{ queue chan *call }

// call is a call, on its way there and back.
type call struct {
	args  []any
	reply any
	err   error
	done  chan struct{}
}

var calls = sync.Pool{New: func() any { return &call{done: make(chan struct{}, 1)} }}

func (p *pipeline) send(_ context.Context, args []any) (any, error) {
	c := calls.Get().(*call)
	c.args = args
	p.queue <- c
	<-c.done
	reply, err := c.reply, c.err
	calls.Put(c)
	return reply, err
}

func (p *pipeline) run(pipe redis.Pipeliner) {
	ctx := context.Background()
	var batch []*call
	for {
		batch = append(batch[:0], <-p.queue)
		for more := true; more && len(batch) < cap(p.queue); {
			select {
			case c := <-p.queue:
				batch = append(batch, c)
			default:
				more = false
			}
		}
		for _, c := range batch {
			pipe.Do(ctx, c.args...)
		}
		cmds, err := pipe.Exec(ctx)
		for i, c := range batch {
			c.reply, c.err = nil, err
			if i < len(cmds) {
				c.reply, c.err = cmds[i].(*redis.Cmd).Result()
			}
			c.done <- struct{}{}
		}
	}
}

// recorded is a script call as Interlock sent it, for recordKey.
type recorded []string

const recordKey = "bench-recorded"

// record has Interlock take, confirm and release a lock, and returns the three
// script calls that it sends for that: the baseline follows the scripts and
// their arguments, however those change.
func record(c *child) (calls [3]recorded, err error) {
	tap := &tap{}
	locker, err := newLocker(redis.NewClient(&redis.Options{
		Addr: c.Addr, ContextTimeoutEnabled: true,
		Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
			return &tapped{conn, tap}, err
		},
	}), c.row.lease)
	if err != nil {
		return calls, err
	}
	// What remains of the client and its goroutines is idle, and counted in no
	// window.
	for range 2 { // the first time scripts may have to be sent in full
		tap.reset()
		lease, err := locker.TryLock(c.ctx, recordKey) // as Lock, but without a place in a list of waiters
		if err != nil {
			return calls, err
		}
		if err := errors.Join(lease.Check(c.ctx), lease.Release(c.ctx)); err != nil {
			return calls, err
		}
	}
	n := 0
	for _, cmd := range tap.commands() {
		if strings.EqualFold(cmd[0], "evalsha") && n < len(calls) {
			calls[n] = cmd
			n++
		}
	}
	if n < len(calls) {
		return calls, fmt.Errorf("the raw baseline found %d script calls in a lock, a check and a release", n)
	}
	return calls, locker.Close(c.ctx)
}

// forKey makes the request for another key. The owner is each script's first
// argument after the keys.
func (r recorded) forKey(key string) request {
	args := make([]any, len(r))
	for i, a := range r {
		args[i] = strings.ReplaceAll(a, recordKey, key)
	}
	nkeys, _ := strconv.Atoi(r[2]) // EVALSHA sha numkeys key... arg...
	return request{args, 3 + nkeys}
}

// tap collects what connections write.
type tap struct {
	mu    sync.Mutex
	bytes bytes.Buffer
}

func (t *tap) reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.bytes.Reset()
}

// commands parses what was written (RESP: an array of bulk strings each).
func (t *tap) commands() (all []recorded) {
	t.mu.Lock()
	defer t.mu.Unlock()
	in := bufio.NewReader(&t.bytes)
	number := func(mark byte) (int, bool) {
		line, err := in.ReadString('\n')
		if err != nil || line[0] != mark {
			return 0, false
		}
		n, err := strconv.Atoi(strings.TrimSpace(line[1:]))
		return n, err == nil
	}
	for {
		n, ok := number('*')
		if !ok {
			return all
		}
		cmd := make(recorded, n)
		for i := range cmd {
			size, ok := number('$')
			text := make([]byte, size+2) // with the end of line
			if _, err := io.ReadFull(in, text); !ok || err != nil {
				return all
			}
			cmd[i] = string(text[:size])
		}
		all = append(all, cmd)
	}
}

// tapped is a connection whose writes are collected.
type tapped struct {
	net.Conn
	tap *tap
}

func (c *tapped) Write(b []byte) (int, error) {
	c.tap.mu.Lock()
	c.tap.bytes.Write(b)
	c.tap.mu.Unlock()
	return c.Conn.Write(b)
}
