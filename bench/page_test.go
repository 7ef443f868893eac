package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The text around the marks stays, and the table between them is the table of the run.
func TestAPageGetsTheFiguresBetweenItsMarks(t *testing.T) {
	page := filepath.Join(t.TempDir(), "costs.md")
	if err := os.WriteFile(page, []byte("before\n"+pageBegin+"earlier figures\n"+pageEnd+"after\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := madeUp()
	for range 2 { // a second run finds the marks again
		if err := r.writePage(page); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	got := string(text)
	if !strings.HasPrefix(got, "before\n"+pageBegin+r.about) || !strings.HasSuffix(got, pageEnd+"after\n") || strings.Contains(got, "earlier figures") {
		t.Errorf("the page is\n%s\nwant the text around the marks, and no earlier figures", got)
	}
	for _, want := range []string{interlock, redsync, rowOf("free-256").title} {
		if !strings.Contains(got, want) {
			t.Errorf("the page lacks %q:\n%s", want, got)
		}
	}
}

func TestAPageWithoutMarksIsLeftAsItIs(t *testing.T) {
	page := filepath.Join(t.TempDir(), "costs.md")
	if err := os.WriteFile(page, []byte("a page\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := madeUp().writePage(page); err == nil {
		t.Error("no error, want one that says that the page has no marks")
	}
	if text, err := os.ReadFile(page); err != nil || string(text) != "a page\n" {
		t.Errorf("the page is now %q (%v)", text, err)
	}
}

// A run writes to the page of the repository, so that page has the marks.
func TestThePageOfTheRepositoryHasItsMarks(t *testing.T) {
	text, err := os.ReadFile("../docs/costs.md")
	if err != nil {
		t.Fatal(err)
	}
	if begin, end := strings.Index(string(text), pageBegin), strings.Index(string(text), pageEnd); begin < 0 || end < begin {
		t.Errorf("docs/costs.md has its marks at %d and %d, want both, in order", begin, end)
	}
}
