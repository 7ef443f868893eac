//go:build unix

package main

import (
	"context"
	"database/sql"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

//go:embed schema.sql
var schema string

// servers are a PostgreSQL and a Redis that end with this process.
type servers struct {
	db     *sql.DB
	ledger string // how to connect to PostgreSQL
	redis  string // the socket of Redis; empty if there is none on this machine
	ends   []func()
}

// startServers starts the servers. If Redis is missing, it prints what to install.
func startServers(ctx context.Context, out io.Writer) (_ *servers, err error) {
	runtime.LockOSThread() // see race
	s := &servers{ends: []func(){runtime.UnlockOSThread}}
	defer func() {
		if err != nil {
			s.stop()
		}
	}()
	if err := s.startPostgres(ctx); err != nil {
		return nil, err
	}
	path := redisServer()
	if path == "" {
		say(out, "No redis-server and no valkey-server: apt-get install redis-server. Until then only SELECT ... FOR UPDATE runs.\n")
		return s, nil
	}
	return s, s.startRedis(ctx, path)
}

// stop ends the servers, and removes their files.
func (s *servers) stop() {
	for _, end := range slices.Backward(s.ends) {
		end()
	}
}

// redisServer returns the path of the server, or nothing: of INTERLOCK_REDIS_SERVER, or on PATH.
func redisServer() string {
	names := []string{"redis-server", "valkey-server"}
	if only := os.Getenv("INTERLOCK_REDIS_SERVER"); only != "" {
		names = []string{only}
	}
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	return ""
}

func (s *servers) startRedis(ctx context.Context, path string) error {
	dir, err := s.dir(nil)
	if err != nil {
		return err
	}
	s.redis = filepath.Join(dir, "redis.sock")
	rdb := redis.NewClient(&redis.Options{Network: "unix", Addr: s.redis})
	defer func() { _ = rdb.Close() }() // it was for the pings
	return s.serve(ctx, func() error { return rdb.Ping(ctx).Err() }, nil, dir, syscall.SIGTERM,
		path, "--port", "0", "--unixsocket", s.redis, "--dir", dir, "--save", "", "--appendonly", "no")
}

func (s *servers) startPostgres(ctx context.Context) error {
	bin, err := postgresPrograms()
	if err != nil {
		return err
	}
	who, err := postgresUser()
	if err != nil {
		return err
	}
	dir, err := s.dir(who)
	if err != nil {
		return err
	}
	data := filepath.Join(dir, "data")
	initdb := command(who, dir, filepath.Join(bin, "initdb"), "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
	if said, err := initdb.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w\n%s", err, said)
	}
	s.ledger = fmt.Sprintf("host=%s user=postgres dbname=postgres sslmode=disable", dir)
	if s.db, err = openLedger(s.ledger); err != nil {
		return err
	}
	s.ends = append(s.ends, func() { _ = s.db.Close() }) // its server is gone or will be
	// SIGINT ends PostgreSQL without a wait for its clients ("fast shutdown").
	err = s.serve(ctx, func() error { return s.db.PingContext(ctx) }, who, dir, syscall.SIGINT,
		filepath.Join(bin, "postgres"), "-D", data, "-k", dir, "-c", "listen_addresses=", "-c", "fsync=off")
	if err != nil {
		return err
	}
	_, err = s.db.ExecContext(ctx, schema)
	return err
}

// postgresPrograms returns the directory of initdb and postgres: of INTERLOCK_POSTGRES_BIN, on
// PATH, or where Debian puts them.
func postgresPrograms() (string, error) {
	dirs, _ := filepath.Glob("/usr/lib/postgresql/*/bin") // the pattern is well-formed
	slices.Reverse(dirs)
	dirs = append(filepath.SplitList(os.Getenv("PATH")), dirs...)
	if only := os.Getenv("INTERLOCK_POSTGRES_BIN"); only != "" {
		dirs = []string{only}
	}
	for _, dir := range dirs {
		_, err1 := exec.LookPath(filepath.Join(dir, "initdb"))
		_, err2 := exec.LookPath(filepath.Join(dir, "postgres"))
		if err1 == nil && err2 == nil {
			return dir, nil
		}
	}
	return "", errors.New("no initdb and postgres, and all accounts are in PostgreSQL: apt-get install postgresql")
}

// postgresUser returns the user for PostgreSQL, which refuses to run as root. nil is the user
// of this process.
func postgresUser() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
		return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, errors.Join(err1, err2)
	}
	return nil, errors.New("PostgreSQL refuses to run as root, and there is no user postgres or nobody")
}

// dir makes a directory that a user owns. stop removes it.
func (s *servers) dir(who *syscall.Credential) (string, error) {
	dir, err := os.MkdirTemp("", "race-")
	if err != nil {
		return "", err
	}
	s.ends = append(s.ends, func() { _ = os.RemoveAll(dir) }) // it is in the system's temporary directory
	if who != nil {
		err = os.Chown(dir, int(who.Uid), int(who.Gid))
	}
	return dir, err
}

// command is a program that runs as a user, in a process group that receives no Ctrl-C: stop
// ends it after the processes that use it.
func command(who *syscall.Credential, dir, path string, args ...string) *exec.Cmd {
	cmd := exec.Command(path, args...)
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: who, Setpgid: true}
	dieWithParent(cmd.SysProcAttr)
	return cmd
}

// serve starts a server and waits until it answers. The signal ends it.
func (s *servers) serve(ctx context.Context, ping func() error, who *syscall.Credential, dir string, end syscall.Signal, path string, args ...string) error {
	logFile, err := os.Create(filepath.Join(dir, "server.log"))
	if err != nil {
		return err
	}
	defer func() { _ = logFile.Close() }() // the server has its copy
	cmd := command(who, dir, path, args...)
	cmd.Stdout, cmd.Stderr = logFile, logFile
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // the log says why it has ended
	}()
	s.ends = append(s.ends, func() {
		_ = cmd.Process.Signal(end) // it may have ended
		select {
		case <-ended:
		case <-time.After(10 * time.Second):
			_ = cmd.Process.Kill()
			<-ended
		}
	})
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		err := ping()
		if err == nil {
			return nil
		}
		select {
		case <-ended:
			said, _ := os.ReadFile(logFile.Name()) // only to explain the end
			return fmt.Errorf("%s has ended:\n%s", filepath.Base(path), said)
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}
