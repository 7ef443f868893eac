//go:build long && unix

package examples

import (
	"bytes"
	"os/exec"
	"strings"
	"testing"

	"github.com/interlock-go/interlock/trust/internal/pgtest"
)

func TestTheDemonstrationOfPaymentsInPostgreSQL(t *testing.T) {
	dsn := pgtest.DSN(t)
	path := build(t, "../..", "./examples/payments")
	cmd := exec.CommandContext(t.Context(), path, "-postgres", dsn)
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
	if n := db.number("SELECT count(*) FROM payments_account"); n != 0 {
		t.Errorf("it has left %d accounts", n)
	}
	// The records stay for their time. Over gRPC a key had another request.
	if n := db.number("SELECT count(*) FROM interlock_record"); n < 100 {
		t.Errorf("%d records of 100 payments", n)
	}

	nowhere := exec.CommandContext(t.Context(), path, "-postgres", "postgres://nobody:secret@127.0.0.1:1/none")
	out, err = nowhere.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "-postgres: ") || strings.Contains(string(out), "secret") {
		t.Errorf("a database that is not there: %v\n%s", err, out)
	}
}
