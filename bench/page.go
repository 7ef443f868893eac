package main

import (
	"fmt"
	"os"
	"strings"
)

// The marks of the part of a page that a run writes.
const (
	pageBegin = "<!-- figures: begin; `make bench` writes this part -->\n"
	pageEnd   = "<!-- figures: end -->\n"
)

// writePage puts the short table between the marks of a page, or nowhere if the name is
// empty.
func (r *report) writePage(path string) error {
	if path == "" {
		return nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	before, rest, begins := strings.Cut(string(text), pageBegin)
	_, after, ends := strings.Cut(rest, pageEnd)
	if !begins || !ends {
		return fmt.Errorf("%s has no part between %q and %q", path, strings.TrimSpace(pageBegin), strings.TrimSpace(pageEnd))
	}
	table := new(strings.Builder)
	r.writeTable(table)
	return os.WriteFile(path, []byte(before+pageBegin+r.about+"\n\n"+table.String()+pageEnd+after), 0o644)
}
