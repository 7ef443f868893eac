package display_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/interlock-go/interlock/internal/display"
)

func TestDurationsHaveTwoUnits(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "0 s", 1999 * time.Millisecond: "1 s", 65 * time.Second: "1 min 5 s", 2*time.Hour + 3*time.Minute: "2 h 3 min", 49 * time.Hour: "2 d 1 h",
	} {
		if got := display.Duration(d); got != want {
			t.Errorf("%v: %q, want %q", d, got, want)
		}
	}
}

func TestTheHeadOfATableIsEscaped(t *testing.T) {
	want := `<thead role="rowgroup"><tr role="row"><th scope="col" role="columnheader">a&lt;b</th>` +
		`<th scope="col" role="columnheader" class="number">n</th></tr></thead>`
	if got := string(display.Columns("a<b", "#n")); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}

// A style that could close its element, or load something, would not be safe in a page.
func TestTheStyleLoadsNothing(t *testing.T) {
	for _, bad := range []string{"</", "url(", "@import", "expression("} {
		if strings.Contains(display.Style, bad) {
			t.Errorf("the style has %q", bad)
		}
	}
}

func TestAPageIsProtected(t *testing.T) {
	h := http.Header{}
	display.Protect(h, "default-src 'none'", "no-referrer")
	for name, want := range map[string]string{
		"Content-Security-Policy": "default-src 'none'", "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY",
		"Referrer-Policy": "no-referrer", "Cross-Origin-Resource-Policy": "same-origin", "Cache-Control": "no-store",
	} {
		if got := h.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}
