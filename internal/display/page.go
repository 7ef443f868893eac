package display

import (
	_ "embed"
	"fmt"
	"html/template"
	"net/http"
	"strings"
	"time"
)

// Style is the style of a page. A page adds a few rules after it.
//
//go:embed page.css
var Style string

// Protect sets the headers of a response that is a page: what a browser may load and run
// for it (Content-Security-Policy), and what of it may leave the browser.
func Protect(h http.Header, policy, referrer string) {
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", referrer)
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
}

// Columns is the head of a table, as templates want it: a column for each name, for numbers
// if the name begins with "#". The names are escaped.
func Columns(names ...string) template.HTML {
	var b strings.Builder
	b.WriteString(`<thead role="rowgroup"><tr role="row">`)
	for _, name := range names {
		class := ""
		if number, ok := strings.CutPrefix(name, "#"); ok {
			name, class = number, ` class="number"`
		}
		fmt.Fprintf(&b, `<th scope="col" role="columnheader"%s>%s</th>`, class, template.HTMLEscapeString(name))
	}
	b.WriteString("</tr></thead>")
	return template.HTML(b.String()) //nolint:gosec // its texts are escaped
}

// Duration is a duration in at most two units, and in whole seconds at the least.
// Negative durations are 0.
func Duration(d time.Duration) string {
	switch s := int64(max(0, d) / time.Second); {
	case s < 60:
		return fmt.Sprintf("%d s", s)
	case s < 3600:
		return fmt.Sprintf("%d min %d s", s/60, s%60)
	case s < 86400:
		return fmt.Sprintf("%d h %d min", s/3600, s%3600/60)
	default:
		return fmt.Sprintf("%d d %d h", s/86400, s%86400/3600)
	}
}
