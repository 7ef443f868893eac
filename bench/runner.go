package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

const (
	// setupTime bounds the time until a process is ready; taking 100,000 locks
	// is the longest. rueidislock sometimes waits for ever when it takes 10,000.
	setupTime = time.Minute
	// endTime bounds the time from the word to stop until the result.
	endTime = 30 * time.Second
)

// process is a child as the parent sees it.
type process struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines chan string // of its output
	log   bytes.Buffer
}

// runCell runs a cell on its own server and in its own processes.
func runCell(ctx context.Context, c cell) (*result, error) {
	row := rowOf(c.Row)
	srv, err := startServer(ctx)
	if err != nil {
		return nil, err
	}
	defer srv.stop()
	// In the server's directory, which goes with it.
	c.Addr, c.Proof = srv.Addr(), filepath.Join(srv.dir, "proof")
	if err := makeProof(c.Proof, row.keys); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var all, procs []*process
	defer func() {
		cancel()
		for _, p := range all {
			_ = p.cmd.Wait() // how it ended was said by its result
		}
	}()
	if row.busy {
		p, err := startProcess(ctx, cell{Row: c.Row, Spin: true})
		if err != nil {
			return nil, err
		}
		all = append(all, p)
		if err := p.expect(ctx, "ready", setupTime); err != nil {
			return nil, err
		}
	}
	if row.far {
		p, err := startProcess(ctx, cell{Row: c.Row, Relay: true, Way: c.Way, Addr: c.Addr})
		if err != nil {
			return nil, err
		}
		all = append(all, p)
		if c.Addr, err = p.line(ctx, setupTime); err != nil {
			return nil, err
		}
	}
	for i := range row.processes {
		c.Proc = i
		p, err := startProcess(ctx, c)
		if err != nil {
			return nil, err
		}
		all, procs = append(all, p), append(procs, p)
		// One after the other: in the idle workload the first takes the lock.
		if err := p.expect(ctx, "ready", setupTime); err != nil {
			return nil, err
		}
	}
	// The windows of the processes begin and end some microseconds apart; all that
	// is counted in a window is a rate before it meets another's.
	tell := func(word string) {
		for _, p := range procs {
			_, _ = io.WriteString(p.in, word+"\n") // a process that has died says so in its result
		}
	}
	tell("go")
	if !pause(ctx, c.warmUp()) {
		return nil, ctx.Err()
	}
	before, err := srv.load(ctx)
	if err != nil {
		return nil, err
	}
	tell("measure")
	if !pause(ctx, c.Window) {
		return nil, ctx.Err()
	}
	after, err := srv.load(ctx)
	if err != nil {
		return nil, err
	}
	tell("stop")
	total := &result{
		Waits: new(hist), Window: after.at.Sub(before.at),
		Commands: after.commands - before.commands, RedisCPU: after.cpu - before.cpu,
	}
	for _, p := range procs {
		line, err := p.line(ctx, endTime)
		if err != nil {
			return nil, err
		}
		var r result
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			return nil, fmt.Errorf("%w\n%s", err, p.said())
		}
		total.merge(&r)
	}
	return total, nil
}

// pause waits, and reports false when ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// startProcess starts this program again, for one part of a cell.
func startProcess(ctx context.Context, c cell) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	spec, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	p := &process{cmd: exec.CommandContext(ctx, self), lines: make(chan string, 4)}
	p.cmd.Env = append(os.Environ(), cellEnv+"="+string(spec))
	p.cmd.Stderr = &p.log
	p.cmd.WaitDelay = time.Second
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	// It ends with the process, because its end closes the pipe. There is room for all that a
	// child says, so it never waits for a parent that has given up.
	go func() {
		defer close(p.lines)
		lines := bufio.NewScanner(out)
		lines.Buffer(nil, 1<<24)
		for lines.Scan() {
			p.lines <- lines.Text()
		}
	}()
	return p, nil
}

// line returns the next line of a process's output.
func (p *process) line(ctx context.Context, within time.Duration) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	select {
	case line, ok := <-p.lines:
		if ok {
			return line, nil
		}
		_ = p.cmd.Wait() // the log is complete then
		return "", fmt.Errorf("the process ended: %s", p.said())
	case <-ctx.Done():
		return "", fmt.Errorf("no word from the process: %w", ctx.Err())
	}
}

// expect is line for a word that is known.
func (p *process) expect(ctx context.Context, word string, within time.Duration) error {
	line, err := p.line(ctx, within)
	if err == nil && line != word {
		err = fmt.Errorf("the process says %q", line)
	}
	return err
}

// said is the end of the output of a process that has ended.
func (p *process) said() string {
	text := strings.TrimSpace(p.log.String())
	return text[max(0, len(text)-500):]
}

// merge adds the measurements of one more process of the cell.
func (r *result) merge(o *result) {
	r.ByProcess = append(r.ByProcess, o.sections())
	r.Elapsed = max(r.Elapsed, o.Elapsed)
	r.Shares = append(r.Shares, o.Shares...)
	r.Waits.merge(o.Waits)
	r.Max = max(r.Max, o.Max)
	r.Violations += o.Violations
	r.Errors += o.Errors
	if r.Error == "" {
		r.Error = o.Error
	}
	r.Stuck += o.Stuck
	r.CPU += o.CPU
	r.Mallocs += o.Mallocs
	r.Goroutines += o.Goroutines
	r.Held += o.Held
	r.Heap += o.Heap
	r.Stack += o.Stack
	r.Lost += o.Lost
}
