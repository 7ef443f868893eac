package interlockdebug

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/interlock-go/interlock/internal/display"
)

//go:embed page.html
var pageText string

//go:embed page.css
var ownStyle string

var style = display.Style + ownStyle

// policy lets a browser use the style in the page, and nothing else.
var policy = "default-src 'none'; style-src 'sha256-" + digest(style) + "'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return base64.StdEncoding.EncodeToString(sum[:])
}

// view is the data of the template.
type view struct {
	*Snapshot
	Refresh int // seconds; 0: the page stays as it is
}

// Style is the style. It is ours, and has nothing to escape.
func (view) Style() template.CSS { return template.CSS(style) } //nolint:gosec // a constant

// KeyColumn is the name of the columns of keys.
func (v view) KeyColumn() string {
	if v.KeysShown {
		return "Key"
	}
	return "Key (hash)"
}

// Failing reports whether a renewal of any lock has failed last.
func (v view) Failing() bool {
	return slices.ContainsFunc(v.Locks, func(l Lock) bool { return l.LastError != "" })
}

// Locking are the rules of locks.
func (v view) Locking() []Rule {
	return slices.DeleteFunc(slices.Clone(v.Rules), func(r Rule) bool {
		return len(r.Decided) > 0 && r.Waiting == 0 && r.Granted+r.Reentered+r.Rejected+r.Bypassed == 0 && len(r.Refused) == 0
	})
}

// Endpoints are the rules of idempotent endpoints.
func (v view) Endpoints() []Rule {
	return slices.DeleteFunc(slices.Clone(v.Rules), func(r Rule) bool { return len(r.Decided) == 0 })
}

// document is the page.
var document = template.Must(template.New("page").Funcs(template.FuncMap{
	"duration": duration, "counts": counts, "text": display.Text, "columns": display.Columns, "named": named, "bars": bars, "ninetyNinth": ninetyNinth,
	"number": func(n any) string { // templates call no generic functions
		if n, ok := n.(int64); ok {
			return number(n)
		}
		return number(n.(int)) //nolint:forcetypeassert // the fields have these two
	},
}).Parse(pageText))

// duration is a time in seconds, short.
func duration(seconds float64) string {
	sign := ""
	if seconds < 0 {
		sign, seconds = "-", -seconds
	}
	d := time.Duration(seconds * float64(time.Second))
	switch {
	case d < time.Second:
		return fmt.Sprintf("%s%d ms", sign, d.Milliseconds())
	case d < time.Minute:
		return fmt.Sprintf("%s%.1f s", sign, d.Seconds())
	}
	return sign + display.Duration(d)
}

// number is a number with commas.
func number[T int | int64](n T) string {
	s := strconv.FormatInt(int64(n), 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// counts are counts by kind, in one text.
func counts(by map[string]int64) string {
	var parts []string
	for _, what := range slices.Sorted(maps.Keys(by)) {
		parts = append(parts, number(by[what])+" "+display.Text(what))
	}
	if len(parts) == 0 {
		return "0"
	}
	return strings.Join(parts, ", ")
}

// named is the name of a rule, which may have none.
func named(rule string) string {
	if rule == "" {
		return "(no name)"
	}
	return display.Text(rule)
}

// bar is a bar of a histogram, in a drawing of 8 by 20 for each.
type bar struct {
	X, Y, Height int
	Title        string
}

const barHeight = 20

func bars(l Latency) []bar {
	most := int64(1)
	for _, b := range l.Buckets {
		most = max(most, b.Count)
	}
	all := make([]bar, len(l.Buckets))
	for i, b := range l.Buckets {
		height := int((b.Count*barHeight + most - 1) / most) // a bucket that is not empty is seen
		all[i] = bar{X: 8 * i, Y: barHeight - height, Height: height, Title: upTo(b) + ": " + number(b.Count)}
	}
	return all
}

// upTo says which durations a bucket counts.
func upTo(b Bucket) string {
	if b.UpToSeconds == 0 {
		return "more"
	}
	return "up to " + duration(b.UpToSeconds)
}

// ninetyNinth is a bound of the 99th percentile.
func ninetyNinth(l Latency) string {
	if l.Count == 0 {
		return "none yet"
	}
	rank, seen := l.Count-l.Count/100, int64(0)
	for _, b := range l.Buckets {
		if seen += b.Count; seen >= rank && b.UpToSeconds > 0 {
			return "p99 ≤ " + duration(b.UpToSeconds)
		}
	}
	return "p99 > " + duration(l.Buckets[len(l.Buckets)-2].UpToSeconds)
}
