package redistest

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

func TestKeptLogsAreShownOnceATestHasFailed(t *testing.T) {
	k := &kept{}
	var shown strings.Builder
	if k.show(&shown); shown.Len() > 0 {
		t.Errorf("nothing was logged, shown is %q", shown.String())
	}
	slog.New(slog.NewTextHandler(k, nil)).Warn("a store warns")
	k.Printf(context.Background(), "pool: %d", 42)
	fmt.Fprintln(k, strings.Repeat("x", maxKept))
	k.show(&shown)
	for _, want := range []string{"a store warns", "go-redis: pool: 42\n", "and 1 lines more"} {
		if !strings.Contains(shown.String(), want) {
			t.Errorf("%q is not shown: %.200q", want, shown.String())
		}
	}
}
