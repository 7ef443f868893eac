//go:build long && unix

package payments

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/interlock-go/interlock/internal/redistest"
	"github.com/interlock-go/interlock/trust/internal/pgtest"
)

// patience bounds every wait. Nothing takes as long that works.
const patience = 60 * time.Second

// build builds the program.
func build(t *testing.T) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "payments")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", path, "./examples/payments")
	cmd.Dir = filepath.Join("..", "..")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return path
}

func TestDemonstration(t *testing.T) {
	dsn := pgtest.DSN(t)
	cmd := exec.CommandContext(t.Context(), build(t), "-postgres", dsn)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, out, &stderr)
	}
	for _, want := range []string{"records of payments, are in PostgreSQL", "made twice, or lost            0", "the bank asks PostgreSQL"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("%q is not in\n%s", want, out)
		}
	}
	db := connect(t, dsn)
	if n := number(t, db, "SELECT count(*) FROM payments_account"); n != 0 {
		t.Errorf("it has left %d accounts", n)
	}
	// The records stay for their time. Over gRPC a key was that of another request.
	if n := number(t, db, "SELECT count(*) FROM interlock_record"); n < 100 {
		t.Errorf("%d records of 100 payments", n)
	}
}

// connect opens the database of a connection string.
func connect(t *testing.T, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open("pgx", dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// number returns what a statement finds.
func number(t *testing.T, db *sql.DB, query string) (n int) {
	t.Helper()
	if err := db.QueryRowContext(t.Context(), query).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// process is a bank that serves.
type process struct {
	t      *testing.T
	cmd    *exec.Cmd
	fronts []string // the addresses of net/http, gin and echo
	over   func() error
}

// serve runs the bank, which is killed at the end of the test.
func serve(t *testing.T, path string, args ...string) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.Command(path, append([]string{"-serve", "-faults", "-addr", "127.0.0.1:0"}, args...)...)}
	p.cmd.Stderr = os.Stderr
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p.over = sync.OnceValue(p.cmd.Wait)
	t.Cleanup(p.kill)
	for lines := bufio.NewScanner(out); lines.Scan(); {
		words := strings.Fields(lines.Text())
		if words[1] == "debug" { // the last line
			return p
		}
		p.fronts = append(p.fronts, words[2])
	}
	t.Fatal("the bank has ended")
	return nil
}

// kill ends the process at once, as a crash does.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may be gone
	_ = p.over()
}

// answer is what a client has got.
type answer struct {
	status   int
	ID       string `json:"payment_id"`
	Balance  int
	Type     string
	replayed bool
	err      error // no answer at all
}

// send sends a request through one of the HTTP front ends.
func (p *process) send(front int, method, path, key, behaviour, body string) (a answer) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(p.t.Context()), patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, "http://"+p.fronts[front]+path, strings.NewReader(body))
	if err != nil {
		return answer{err: err}
	}
	r.Header.Set("Authorization", "Bearer carol")
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	if behaviour != "" {
		r.Header.Set("Bank-Behaviour", behaviour)
	}
	r.Close = true
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		return answer{err: err}
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err == nil {
		err = json.Unmarshal(text, &a)
	}
	a.status, a.replayed, a.err = res.StatusCode, res.Header.Get("Idempotent-Replayed") == "true", err
	return a
}

// A payment whose process is killed has not been made, whenever that happens, and its retry
// makes it once.
func TestAPaymentOfAKilledProcessIsMadeOnceByAnother(t *testing.T) {
	path, redis, dsn := build(t), redistest.Start(t).Addr(), pgtest.DSN(t)
	args := []string{"-redis", redis, "-postgres", dsn, "-lease", "9s", "-ttl", "9s"}
	db := connect(t, dsn)
	other := serve(t, path, args...)
	if a := other.send(0, http.MethodPut, "/accounts/alice?balance=100", "", "", ""); a.err != nil || a.status != http.StatusOK {
		t.Fatalf("%+v", a)
	}
	const body = `{"account":"alice","amount":10}`
	for i, behaviour := range []string{
		"delay=1m", // killed while it works
		"effect",   // killed when the payment is in the transaction, and not committed
	} {
		key, left := fmt.Sprint("key-", i), 100-10*i
		// The commit of the second one waits for this transaction.
		block, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := block.ExecContext(t.Context(), "LOCK TABLE payments_payment IN SHARE MODE"); err != nil {
			t.Fatal(err)
		}
		killed := serve(t, path, args...)
		sent := make(chan answer, 1)
		go func() { sent <- killed.send(i, http.MethodPost, "/payments", key, behaviour, body) }()
		waiting := map[string]string{
			"delay=1m": "SELECT count(*) FROM interlock_record WHERE state = 'c'",
			"effect":   "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'payments_payment'::regclass",
		}[behaviour]
		for end := time.Now().Add(patience); number(t, db, waiting) != 1; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s: the payment has not come so far", behaviour)
			}
		}
		killed.kill()
		if a := <-sent; a.err == nil {
			t.Errorf("%s: the killed process answered %+v", behaviour, a)
		}
		if err := block.Rollback(); err != nil {
			t.Error(err)
		}
		if n, has := number(t, db, "SELECT count(*) FROM payments_payment"), number(t, db, "SELECT balance FROM payments_account"); n != i || has != left {
			t.Errorf("%s: after the kill there are %d payments, and %d left", behaviour, n, has)
		}
		var made answer
		for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			made = other.send(i, http.MethodPost, "/payments", key, "", body)
			if !strings.HasSuffix(made.Type, ":idempotency-in-flight") && !strings.HasSuffix(made.Type, ":held") && made.status < 500 {
				break
			}
		}
		if made.status != http.StatusCreated || made.replayed || made.Balance != left-10 {
			t.Errorf("%s: the retry got %+v", behaviour, made)
		}
		again := other.send(2-i, http.MethodPost, "/payments", key, "", body)
		if again.status != http.StatusCreated || !again.replayed || again.ID != made.ID {
			t.Errorf("%s: the second retry got %+v, want a replay of %+v", behaviour, again, made)
		}
		if n, has := number(t, db, "SELECT count(*) FROM payments_payment"), number(t, db, "SELECT balance FROM payments_account"); n != i+1 || has != left-10 {
			t.Errorf("%s: there are %d payments, and %d left", behaviour, n, has)
		}
	}
}

// A request that fails after its payment leaves nothing of it.
func TestAPaymentThatFailsIsRolledBack(t *testing.T) {
	path, dsn := build(t), pgtest.DSN(t)
	p := serve(t, path, "-postgres", dsn)
	db := connect(t, dsn)
	if a := p.send(0, http.MethodPut, "/accounts/alice?balance=100", "", "", ""); a.err != nil || a.status != http.StatusOK {
		t.Fatalf("%+v", a)
	}
	const body = `{"account":"alice","amount":10}`
	for front := range p.fronts[:3] {
		key := fmt.Sprint("key-", front)
		if a := p.send(front, http.MethodPost, "/payments", key, "effect,status=500", body); a.status != http.StatusInternalServerError {
			t.Errorf("%+v", a)
		}
		if n := number(t, db, "SELECT count(*) FROM payments_payment"); n != front {
			t.Errorf("%d payments after a failure, want %d", n, front)
		}
		if a := p.send(front, http.MethodPost, "/payments", key, "", body); a.status != http.StatusCreated || a.replayed || a.Balance != 90-10*front {
			t.Errorf("the retry got %+v", a)
		}
	}
}

func TestADatabaseThatIsNotThere(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), build(t), "-postgres", "postgres://nobody:secret@127.0.0.1:1/none")
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "-postgres: ") || strings.Contains(string(out), "secret") {
		t.Errorf("%v\n%s", err, out)
	}
}
