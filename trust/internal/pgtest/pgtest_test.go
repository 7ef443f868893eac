//go:build long && unix

package pgtest_test

import (
	"testing"

	"github.com/interlock-go/interlock/trust/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func TestEachTestHasASchemaOfItsOwn(t *testing.T) {
	for range 2 {
		db := pgtest.Open(t)
		if _, err := db.ExecContext(t.Context(), "CREATE TABLE t (a int)"); err != nil {
			t.Error(err)
		}
	}
}
