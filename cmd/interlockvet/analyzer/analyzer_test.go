package analyzer_test

import (
	"testing"

	"golang.org/x/tools/go/analysis/analysistest"

	"github.com/interlock-go/interlock/cmd/interlockvet/analyzer"

	// The packages in testdata import them.
	_ "github.com/gin-gonic/gin"
	_ "github.com/redis/go-redis/v9"

	_ "github.com/interlock-go/interlock/core"
)

// Each package in testdata has seeded faults, with the wanted report in the same line, and good code
// of the same shape, of which nothing is reported.
func TestSeededFaultsAreFoundAndGoodCodeIsNot(t *testing.T) {
	analysistest.Run(t, "..", analyzer.Analyzer, "./analyzer/testdata/src/...")
}
