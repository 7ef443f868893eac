package checks_test

import (
	"regexp"
	"strings"
	"testing"
)

// TestTheWordsThatPeopleSearchLeadToAnswers looks up words in the index of the documents, in the
// sections that the index leads to, and in the Go comments of what answers them.
func TestTheWordsThatPeopleSearchLeadToAnswers(t *testing.T) {
	atRoot(t)
	for word, c := range map[string]struct{ section, file string }{
		"leader election": {"docs/across-services.md#leader-election", "core/lead.go"},
		"semaphore":       {"docs/sharing.md#sharing-and-permits", "core/places.go"},
		"mutex":           {"docs/use.md#locks-in-code", "core/locker.go"},
		"distributed":     {"docs/use.md#locks-in-code", "core/doc.go"},
		"tracing":         {"docs/operations.md#metrics-and-tracing", "otel/doc.go"},
		"metrics":         {"docs/operations.md#metrics-and-tracing", "otel/doc.go"},
		"outbox":          {"docs/peers.md#without-a-lock", ""},
		"deduplication":   {"docs/across-services.md#once-for-a-key", "core/idempotency/once/once.go"},
		"singleton job":   {"docs/across-services.md#once-in-a-period", "core/idempotency/once/per.go"},
		"cron":            {"docs/problems.md#cron-on-three-replicas", "core/idempotency/once/per.go"},
		"throttle":        {"docs/operations.md#limits", "core/limit.go"},
		"rate limit":      {"docs/operations.md#limits", "core/limit.go"},
	} {
		page, anchor, _ := strings.Cut(c.section, "#")
		row := regexp.MustCompile(`(?mi)^\|[^|]*\b` + word + `\b[^|]*\|.*\(` + strings.TrimPrefix(c.section, "docs/") + `\)`)
		if !row.MatchString(read(t, index)) {
			t.Errorf("%s has no row of %q that leads to %s", index, word, c.section)
		}
		text := section(read(t, page), anchor)
		if text == "" {
			t.Errorf("%s has no section %q", page, anchor)
		}
		if !strings.Contains(strings.ToLower(text), word) {
			t.Errorf("%s leads readers to %s for %q, and the section does not have the word", index, c.section, word)
		}
		if c.file == "" {
			continue
		}
		if !strings.Contains(strings.ToLower(comments(read(t, c.file))), word) {
			t.Errorf("no comment of %s has the word %q", c.file, word)
		}
	}
}

// comments joins the lines of a file's comments.
func comments(source string) string {
	var text strings.Builder
	for line := range strings.Lines(source) {
		if _, comment, found := strings.Cut(line, "//"); found {
			text.WriteString(strings.TrimRight(comment, "\n"))
		}
	}
	return text.String()
}
