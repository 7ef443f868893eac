//go:build unix

package main

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver pgx
	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
)

const (
	// workerEnv has the job of a process that debits.
	workerEnv = "INTERLOCK_EXAMPLE_RACE"
	// workTime is the time between a read and a write.
	workTime = 2 * time.Millisecond
	// restTime is the time between two debits of a process. Without it a process that releases
	// its lock has it again before redsync and redislock try in another process.
	restTime = 2 * retry
)

// job is the work of a process.
type job struct {
	Approach      int // of approaches
	Account       string
	Redis, Ledger string // how to connect
}

// outcome is the last line of a process.
type outcome struct{ Debits, Refused int64 }

// worker is a process that debits until the parent writes "end". The parent stops the
// process between a read and a write in these steps:
//
//	parent: "stop"
//	worker: "read", when it has read a balance
//	parent: SIGSTOP; another process writes; "continue"; SIGCONT
//	worker: "done", after its write
//
// The worker cannot write before it has read "continue". So the order is certain, although a
// signal takes effect a little after it was sent.
type worker struct {
	job
	db         *sql.DB
	stop, goOn chan struct{}
	end        chan struct{}
	wasStopped bool
}

// runWorker debits if this process was started for that, and reports whether it was.
func runWorker() bool {
	text, ok := os.LookupEnv(workerEnv)
	if !ok {
		return false
	}
	w := &worker{stop: make(chan struct{}, 1), goOn: make(chan struct{}, 1), end: make(chan struct{})}
	if err := json.Unmarshal([]byte(text), &w.job); err != nil {
		log.Fatal(err)
	}
	if err := w.run(context.Background()); err != nil {
		log.Fatalf("%s: %v", approaches[w.Approach].name, err)
	}
	return true
}

func (w *worker) run(ctx context.Context) error {
	var err error
	if w.db, err = openLedger(w.Ledger); err != nil {
		return err
	}
	rdb := redis.NewClient(&redis.Options{Network: "unix", Addr: w.Redis, ReadTimeout: patience})
	debit, err := approaches[w.Approach].open(rdb, w.db)
	if err != nil {
		return err
	}
	go w.listen()
	fmt.Println("ready")
	var sum outcome
	for {
		select {
		case <-w.end:
			return json.NewEncoder(os.Stdout).Encode(sum) // the end of the process closes all connections
		default:
		}
		switch err := debit(ctx, w.Account, place{w.hold, w.work}); {
		case err == nil:
			sum.Debits++
		case errors.Is(err, core.ErrLost):
			sum.Refused++
		default:
			return err
		}
		if w.wasStopped {
			w.wasStopped = false
			fmt.Println("done")
		}
		time.Sleep(restTime)
	}
}

// listen reads the words of the parent. If the parent ends, the process ends.
func (w *worker) listen() {
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		switch in.Text() {
		case "stop":
			w.stop <- struct{}{}
		case "continue":
			w.goOn <- struct{}{}
		case "end":
			close(w.end)
		}
	}
	os.Exit(1)
}

// hold counts this process among the holders of the account.
func (w *worker) hold(ctx context.Context, section func() error) (err error) {
	const enter = "UPDATE holding SET holders = holders + 1, met = met + (holders > 0)::int WHERE account = $1"
	if _, err := w.db.ExecContext(ctx, enter, w.Account); err != nil {
		return err
	}
	defer func() {
		_, left := w.db.ExecContext(ctx, "UPDATE holding SET holders = holders - 1 WHERE account = $1", w.Account)
		err = errors.Join(err, left)
	}()
	return section()
}

// work takes its time, and waits for the parent if it wants to stop this process.
func (w *worker) work() {
	time.Sleep(workTime)
	select {
	case <-w.stop:
		fmt.Println("read")
		<-w.goOn
		w.wasStopped = true
	default:
	}
}

// openLedger returns a pool of connections to PostgreSQL.
func openLedger(dsn string) (*sql.DB, error) { return sql.Open("pgx", dsn) }
