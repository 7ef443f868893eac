package drivertest

import (
	"strings"
	"testing"

	"github.com/interlock-go/interlock/core/memstore"
)

func TestAnErrorInAScenarioNamesItsLine(t *testing.T) {
	for line, want := range map[string]string{
		"a acquires k gently -> granted": `f.txt:2: unknown word "gently"`, "a acquires k -> gone": `f.txt:2: unknown word "gone"`,
		"a acquires k ttl=soon -> granted": `f.txt:2: a bad value in "ttl=soon"`, "a acquires k ttl>1s -> granted": `f.txt:2: a bad value`,
		"a acquires k shared=1 -> granted": `f.txt:2: a bad value`, "a acquires k": "f.txt:2: the line does not say",
		"a snatches k -> granted": "f.txt:2: unknown step", "a releases": "f.txt:2: unknown step", "within a second:": "f.txt:2: unknown step",
		"needs luck": `f.txt:2: unknown need "luck"`, "  a releases k": "f.txt:2: a step outside",
	} {
		if _, err := parse("f.txt", "scenario s\n"+line); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: the error is %v; want %s", line, err, want)
		}
	}
}

func TestAFailureSaysWhatCameAndWhatWasExpected(t *testing.T) {
	all, err := parse("f.txt", "scenario s\na acquires k -> granted\nb acquires k wait -> listed holder=c")
	if err == nil {
		err = newStage(t, memstore.New()).all(all[0].steps)
	}
	for _, want := range []string{"f.txt:3: b acquires k wait -> listed holder=c\n", "refused listed holder=a:1 ", "expected is c"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error is %v; want %q in it", err, want)
		}
	}
}
