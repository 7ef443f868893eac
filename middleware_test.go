package interlock_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/interlock-go/interlock/internal/conformance"
	"github.com/interlock-go/interlock/internal/frameworks"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// One rule means the same in every framework: the same key, the same waiting, the same
// refusals, the same spans. The table of behaviours is package conformance, and each store
// runs it on its server too.
func TestEveryFrameworkBehavesTheSame(t *testing.T) {
	conformance.Run(t, frameworks.All, conformance.Memory)
}

func TestOneRuleExcludesAcrossFrameworks(t *testing.T) {
	conformance.RunAcross(t, frameworks.All, conformance.Memory)
}

func TestAllFrameworksShareOneLedger(t *testing.T) {
	conformance.RunLedger(t, frameworks.All, conformance.Memory)
}
