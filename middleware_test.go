package interlock_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/adapter/adaptertest"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/internal/frameworks/all"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// One rule means the same in every framework: the same key, the same waiting, the same
// refusals. The table of behaviours is package conformance.
func TestEveryFrameworkBehavesTheSame(t *testing.T) { adaptertest.Run(t, all.Frameworks...) }

func TestOneRuleExcludesAcrossFrameworks(t *testing.T) {
	store := memstore.New()
	adaptertest.RunAcross(t, func(testing.TB) core.Store { return store }, all.Frameworks...)
}
