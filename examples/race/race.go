//go:build unix

package main

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

const (
	// processes is the number of processes that debit an account.
	processes = 4
	// opening is the first balance.
	opening = 1_000_000_000
)

// row is a row of the table.
type row struct {
	approach
	debits   int64 // that a process was told are made
	stopped  int
	overlaps int64 // holders that began while the account had another one
	refused  int64
	lost     int64 // debits that a later write has overwritten
	wrong    int64 // the final balance is above the first balance without the debits by this
}

// race runs an approach.
func race(ctx context.Context, s *servers, a approach, each time.Duration) (r row, err error) {
	// Linux ends a child when the thread ends that has started it (see dieWithParent).
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	ctx, cancel := context.WithTimeout(ctx, each+patience)
	defer cancel()
	r = row{approach: a}
	account := strings.Fields(a.name)[0]
	if err := put(ctx, s.db, account); err != nil {
		return r, err
	}
	index := slices.IndexFunc(approaches, func(other approach) bool { return other.name == a.name })
	var all []*process
	defer func() {
		for _, p := range all {
			p.kill()
		}
	}()
	for range processes {
		p, err := startWorker(ctx, job{Approach: index, Account: account, Redis: s.redis, Ledger: s.ledger})
		if err != nil {
			return r, err
		}
		all = append(all, p)
	}
	for _, p := range all {
		if err := p.await("ready"); err != nil {
			return r, err
		}
	}
	for end := time.Now().Add(each); r.stopped == 0 || time.Now().Before(end); r.stopped++ {
		if err := all[r.stopped%processes].stopOnce(ctx, s.db, a, account); err != nil {
			return r, err
		}
		if err := pause(ctx, lease/2); err != nil { // all debit undisturbed
			return r, err
		}
	}
	for _, p := range all {
		o, err := p.finish()
		if err != nil {
			return r, err
		}
		r.debits += o.Debits
		r.refused += o.Refused
	}
	return r, r.count(ctx, s.db, account)
}

// put opens the account.
func put(ctx context.Context, db *sql.DB, account string) error {
	_, err := db.ExecContext(ctx, "INSERT INTO account (id, balance) VALUES ($1, $2)", account, opening)
	if err == nil {
		_, err = db.ExecContext(ctx, "INSERT INTO holding (account) VALUES ($1)", account)
	}
	return err
}

// count reads the counts from the database. The balance that a process had read is the
// balance that it wrote, plus the amount. If the row was lower already, debits are lost.
func (r *row) count(ctx context.Context, db *sql.DB, account string) error {
	var balance int64
	err := db.QueryRowContext(ctx, `SELECT a.balance, h.met,
		(SELECT coalesce(sum(after + $2 - before), 0)::bigint / $2 FROM change c WHERE c.account = a.id)
		FROM account a JOIN holding h ON h.account = a.id WHERE a.id = $1`, account, int64(amount)).
		Scan(&balance, &r.overlaps, &r.lost)
	r.wrong = balance - (opening - amount*r.debits)
	return err
}

// process is a worker as its parent sees it.
type process struct {
	*exec.Cmd
	in  io.Writer
	out *bufio.Reader
}

// startWorker starts this program as a worker. The end of the context kills it.
func startWorker(ctx context.Context, j job) (*process, error) {
	path, err := os.Executable()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(j)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, path)
	cmd.Env = append(os.Environ(), workerEnv+"="+string(text))
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = new(syscall.SysProcAttr)
	dieWithParent(cmd.SysProcAttr)
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	return &process{cmd, in, bufio.NewReader(out)}, cmd.Start()
}

// stopOnce stops the process between a read and a write, until another process has written.
func (p *process) stopOnce(ctx context.Context, db *sql.DB, a approach, account string) error {
	if err := errors.Join(p.tell("stop"), p.await("read")); err != nil {
		return err
	}
	// Without a lock in Redis the open transaction keeps all other writes out.
	err := p.Process.Signal(syscall.SIGSTOP)
	if err == nil && a.onRedis {
		err = anotherWrite(ctx, db, account)
	} else if err == nil {
		err = pause(ctx, 2*lease)
	}
	return errors.Join(err, p.tell("continue"), p.Process.Signal(syscall.SIGCONT), p.await("done"))
}

// anotherWrite waits until the account is written.
func anotherWrite(ctx context.Context, db *sql.DB, account string) error {
	const writes = "SELECT count(*) FROM change WHERE account = $1"
	var before int64
	if err := db.QueryRowContext(ctx, writes, account).Scan(&before); err != nil {
		return err
	}
	for now := before; now == before; {
		if err := pause(ctx, 5*time.Millisecond); err != nil {
			return err
		}
		if err := db.QueryRowContext(ctx, writes, account).Scan(&now); err != nil {
			return err
		}
	}
	return nil
}

// pause waits, or returns why the context has ended.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}

// tell writes a word to the process.
func (p *process) tell(word string) error {
	_, err := io.WriteString(p.in, word+"\n")
	return err
}

// await waits for a word of the process.
func (p *process) await(word string) error {
	line, err := p.out.ReadString('\n')
	if err == nil && line != word+"\n" {
		err = fmt.Errorf("it writes %q", line)
	}
	if err != nil {
		return fmt.Errorf("a process has to write %q: %w", word, err)
	}
	return nil
}

// finish lets the process end after its debit.
func (p *process) finish() (o outcome, err error) {
	if err := p.tell("end"); err != nil {
		return o, err
	}
	line, err := p.out.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &o)
	}
	return o, err
}

// kill ends the process, which may be stopped, or have ended.
func (p *process) kill() {
	_ = p.Process.Kill()
	_ = p.Wait()
}
