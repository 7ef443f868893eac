package drawn_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/interlock-go/interlock/internal/drawn"
)

type request struct {
	Key    string
	Weight int
	Late   func()
}

// failures is a test that keeps its failures.
type failures struct {
	testing.TB
	said []string
}

func (*failures) Helper() {}

func (f *failures) Errorf(format string, args ...any) {
	f.said = append(f.said, fmt.Sprintf(format, args...))
}

func TestAFieldThatIsNotDrawnIsFound(t *testing.T) {
	for name, c := range map[string]struct {
		requests []request
		without  []string
		want     []string // of the failures, in their order
	}{
		"all are drawn":                {[]request{{Key: "k"}, {Weight: 1}}, []string{"Late"}, nil},
		"one is not drawn":             {[]request{{Key: "k"}}, []string{"Late"}, []string{"Weight was drawn: false"}},
		"a named field is drawn":       {[]request{{Key: "k", Weight: 1}}, []string{"Weight", "Late"}, []string{"Weight was drawn: true"}},
		"a named field does not exist": {[]request{{Key: "k", Weight: 1}}, []string{"Late", "Wait"}, []string{"no field Wait"}},
		"nothing is drawn":             {nil, nil, []string{"Key was", "Weight was", "Late was"}},
	} {
		var fields drawn.Fields[request]
		for _, r := range c.requests {
			fields.Note(r)
		}
		var f failures
		fields.WantAll(&f, c.without...)
		if !slices.EqualFunc(f.said, c.want, strings.Contains) {
			t.Errorf("%s: %q; want %q", name, f.said, c.want)
		}
	}
}
