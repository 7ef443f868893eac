package testkit_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/interlock-go/interlock/internal/testkit"
)

// failures is a test that keeps its failures.
type failures struct {
	testing.TB
	said []string
}

func (*failures) Helper() {}

func (f *failures) Errorf(format string, args ...any) {
	f.said = append(f.said, fmt.Sprintf(format, args...))
}

func TestADeclaredRowIsSkipped(t *testing.T) {
	for _, declared := range []map[string]string{nil, {"a row": "the reason"}} {
		ran := false
		t.Run("a row", func(t *testing.T) {
			testkit.Row(t, "a row", "Framework.Cannot", declared)
			ran = true
		})
		if want := declared == nil; ran != want {
			t.Errorf("with the declarations %v the row has run: %v; want %v", declared, ran, want)
		}
	}
}

func TestADeclarationNamesARowAndHasAReason(t *testing.T) {
	for name, c := range map[string]struct{ row, reason, want string }{
		"a row":          {"a row", "the reason", ""},
		"no reason":      {"a row", "", "want the reason"},
		"an old name":    {"a roww", "the reason", `no row; the rows are ["a row"]`},
		"no name at all": {"", "the reason", "no row"},
	} {
		var f failures
		testkit.Declared(&f, "mine", map[string]string{c.row: c.reason}, []string{"a row"})
		if got := strings.Join(f.said, "; "); (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q; want %q", name, got, c.want)
		}
	}
}
