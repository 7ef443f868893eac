package checks_test

import (
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// atRoot has the test run in the root of the repository.
func atRoot(t *testing.T) {
	t.Helper()
	t.Chdir(filepath.Join("..", ".."))
}

// TestCodeInTheDocumentsIsCompiled looks up every line of Go that the README, the
// documents and the package comments show in the compiled code of this module. Whole
// programs are compiled by TestProgramsInTheDocumentsCompile.
func TestCodeInTheDocumentsIsCompiled(t *testing.T) {
	atRoot(t)
	compiled := map[string]bool{}
	shown := map[string][]string{} // by document
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (strings.HasPrefix(d.Name(), ".") && path != "." || d.Name() == "tools") {
			return fs.SkipDir
		}
		switch filepath.Ext(path) {
		case ".md":
			text, err := os.ReadFile(path)
			shown[path], _ = fenced(string(text))
			return err
		case ".go":
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			for line := range strings.Lines(string(text)) {
				if line = normal(line); !strings.HasPrefix(line, "//") {
					compiled[line] = true
				}
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, text, parser.ParseComments|parser.PackageClauseOnly)
			if err == nil && file.Doc != nil {
				shown[path] = indented(file.Doc)
			}
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	lines := 0
	for path, code := range shown {
		for _, line := range code {
			lines++
			if !compiled[normal(line)] {
				t.Errorf("%s shows a line that is compiled nowhere; put its code into an example or snippets_test.go:\n\t%s", path, line)
			}
		}
	}
	if lines < 20 {
		t.Errorf("only %d lines of code found in the documents: the test has gone blind", lines)
	}
}

// TestTestsThatTheDocumentsNameExist looks up every test that a document names as
// the evidence of a promise.
func TestTestsThatTheDocumentsNameExist(t *testing.T) {
	atRoot(t)
	declared := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)\w+)\(`)
	named := regexp.MustCompile(`\b(?:Test|Fuzz|Benchmark)[A-Z]\w+`)
	exists := map[string]bool{}
	documents := map[string][]string{} // by the name of a test
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && strings.HasPrefix(d.Name(), ".") && path != "." {
			return fs.SkipDir
		}
		document := filepath.Ext(path) == ".md"
		if d.IsDir() || !document && !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(path)
		for _, name := range declared.FindAllSubmatch(text, -1) {
			exists[string(name[1])] = true
		}
		for _, name := range named.FindAllString(string(text), -1) {
			if document {
				documents[name] = append(documents[name], path)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, paths := range documents {
		if !exists[name] {
			t.Errorf("%s: no test has the name %s", strings.Join(paths, ", "), name)
		}
	}
	if len(documents) < 50 {
		t.Errorf("only %d tests are named in the documents: the test has gone blind", len(documents))
	}
}

// TestProgramsInTheDocumentsCompile vets each block of Go that begins with its package. It
// may import modules that this module requires.
func TestProgramsInTheDocumentsCompile(t *testing.T) {
	atRoot(t)
	found := 0
	for _, document := range documents(t) {
		_, programs := fenced(read(t, document))
		for _, program := range programs {
			found++
			file := filepath.Join(t.TempDir(), "main.go")
			if err := os.WriteFile(file, []byte(program), 0o600); err != nil {
				t.Fatal(err)
			}
			if out, err := exec.CommandContext(t.Context(), "go", "vet", file).CombinedOutput(); err != nil {
				t.Errorf("%s: a program does not compile: %v\n%s", document, err, out)
			}
			if formatted, err := format.Source([]byte(program)); err != nil || string(formatted) != program {
				t.Errorf("%s: a program is not formatted (%v): gofmt makes of it\n%s", document, err, formatted)
			}
		}
	}
	if found == 0 {
		t.Error("no program found in the documents: the test has gone blind")
	}
}

// fenced returns the lines of a Markdown text's Go blocks, and apart from them the blocks
// that are whole programs.
func fenced(text string) (code, programs []string) {
	var block []string
	inside := false
	for line := range strings.Lines(text) {
		switch {
		case strings.HasPrefix(line, "```"):
			if len(block) > 0 && strings.HasPrefix(block[0], "package ") {
				programs = append(programs, strings.Join(block, ""))
			} else {
				code = append(code, block...)
			}
			block, inside = nil, strings.TrimSpace(line) == "```go"
		case inside && (strings.TrimSpace(line) != "" || len(block) > 0):
			block = append(block, line)
		}
	}
	return slices.DeleteFunc(code, func(line string) bool { return strings.TrimSpace(line) == "" }), programs
}

// indented returns the lines of a package comment's code blocks, of the blocks that
// are Go: the others are commands, tables and messages.
func indented(doc *ast.CommentGroup) (code []string) {
	var block []string
	end := func() {
		body := "package p; func _() {\n" + strings.Join(block, "\n") + "\n}"
		if _, err := parser.ParseFile(token.NewFileSet(), "", body, 0); err == nil {
			code = append(code, block...)
		}
		block = nil
	}
	for _, c := range doc.List {
		if line, ok := strings.CutPrefix(c.Text, "//\t"); ok {
			block = append(block, line)
		} else {
			end()
		}
	}
	end()
	return code
}

// normal is a line without its indentation and its trailing comment.
func normal(line string) string {
	line = strings.TrimSpace(line)
	if code, _, ok := strings.Cut(line, " //"); ok {
		line = strings.TrimSpace(code)
	}
	return strings.TrimPrefix(line, "_ = ") // an expression that is shown alone
}

// sentence is a numbered sentence of docs/how-it-works.md, with its file.
var sentence = regexp.MustCompile(`(?m)^(\d+)\. (.+): \[(.+)\]\(\.\./(.+)\)\.$`)

// TestEachOfThe25SentencesNamesWhatItsFileHas reads the first section of how-it-works: each
// sentence names a file that exists, and functions or types that the file declares. A name
// of another package (core.Guard.Do) is not looked up.
func TestEachOfThe25SentencesNamesWhatItsFileHas(t *testing.T) {
	atRoot(t)
	text, err := os.ReadFile("docs/how-it-works.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "## Core in 25 sentences\n")
	section, _, _ = strings.Cut(section, "\n## ")
	all := sentence.FindAllStringSubmatch(section, -1)
	if len(all) != 25 {
		t.Fatalf("%d sentences with a file, want 25", len(all))
	}
	name := regexp.MustCompile("`((?:[A-Za-z]+\\.){0,2}[A-Za-z]+)`")
	qualified := regexp.MustCompile(`^([a-z]+)\.([A-Z].*)$`)
	for i, s := range all {
		number, says, shown, path := s[1], s[2], s[3], s[4]
		if number != strconv.Itoa(i+1) || shown != path {
			t.Errorf("sentence %d has the number %s, and the name %s for %s", i+1, number, shown, path)
		}
		source, err := os.ReadFile(path)
		if err != nil {
			t.Errorf("sentence %s: %v", number, err)
			continue
		}
		if filepath.Ext(path) != ".go" {
			continue
		}
		for _, of := range name.FindAllStringSubmatch(says, -1) {
			declared := of[1]
			if q := qualified.FindStringSubmatch(declared); q != nil {
				if q[1] != filepath.Base(filepath.Dir(path)) {
					continue // of another package
				}
				declared = q[2]
			}
			pattern := `(?m)^(func|type) ` + declared + `\b`
			if receiver, method, ok := strings.Cut(declared, "."); ok {
				pattern = `(?m)^func \(\w+ \*?` + receiver + `\) ` + method + `\(`
			}
			if !regexp.MustCompile(pattern).Match(source) {
				t.Errorf("sentence %s: %s declares no %s", number, path, declared)
			}
		}
	}
}
