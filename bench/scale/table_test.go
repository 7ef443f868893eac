package main

import (
	"bytes"
	"math"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestAWrongModelIsNoticed(t *testing.T) {
	var tab table
	tab.add("w", "right", 100, 101, exactly)
	tab.add("w", "none", 0, 0, exactly)
	tab.note("w", "told", 5)
	if n := tab.off(); n != 0 {
		t.Errorf("%d rows are off, want none", n)
	}
	tab.add("w", "too much", 100, 103, exactly)
	tab.add("w", "too little", 100, 60, roughly)
	tab.add("w", "something for nothing", 0, 1, roughly)
	tab.add("w", "no number", 1, math.NaN(), roughly)
	if n := tab.off(); n != 4 {
		t.Errorf("%d rows are off, want 4", n)
	}
	if text := tab.markdown(); strings.Count(text, "**off**") != 4 || !strings.Contains(text, "| too much | 100 | 103 | +3.0 %") {
		t.Errorf("the table:\n%s", text)
	}
}

func TestArguments(t *testing.T) {
	var out, errs bytes.Buffer
	for _, bad := range [][]string{{"-time", "0s"}, {"-x"}, {"word"}} {
		if code := run(bad, &out, &errs); code != exitUsage || out.Len() > 0 {
			t.Errorf("%q ends with %d and says %q", bad, code, out.String())
		}
	}
}
