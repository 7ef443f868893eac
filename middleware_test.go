package interlock_test

import (
	"testing"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/memstore"

	"go.uber.org/goleak"

	"github.com/interlock-go/interlock/internal/conformance"
	"github.com/interlock-go/interlock/internal/frameworks"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// One rule means the same in every framework: the same key, the same waiting, the same
// refusals. The table of behaviours is package conformance.
func TestEveryFrameworkBehavesTheSame(t *testing.T) { conformance.Run(t, frameworks.All) }

func TestOneRuleExcludesAcrossFrameworks(t *testing.T) {
	store := memstore.New()
	conformance.RunAcross(t, frameworks.All, func(testing.TB) core.Store { return store })
}
