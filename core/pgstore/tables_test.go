package pgstore

import (
	"strings"
	"testing"

	"github.com/interlock-go/interlock/core/observe"
)

// undefined is the error of PostgreSQL for a missing table.
type undefined struct{}

func (undefined) Error() string    { return `relation "interlock_records" does not exist` }
func (undefined) SQLState() string { return "42P01" }

// Logs had the error of the database alone.
func TestTheRootCauseOfMissingTablesNamesMigrate(t *testing.T) {
	err := explain(undefined{})
	if root := observe.RootCause(err).Error(); !strings.Contains(root, "Store.Migrate") || !strings.Contains(err.Error(), "does not exist") {
		t.Errorf("%v, with the root cause %q; want both name what to do", err, root)
	}
}
