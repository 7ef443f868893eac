package checks_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// backward are the phrases that make a reader look back for the noun, or that replace a plain
// verb by a roundabout phrase, and how often each may stand in 1,000 words.
var backward = []struct {
	phrase *regexp.Regexp
	most   float64
}{
	{phrase(`(?i)\b(one|ones|those) (that|which|of)\b|\bthat of\b`), 0.3},
	{phrase(`(?i)\b(is|are|was|were) over\b`), 0.1},
	{phrase(`(?i)\b(hears?|heard|learns?|tells?|told|knows?) of\b`), 0.1},
	{phrase(`(?i)\b(nobody|somebody|anybody|everybody|whoever|whichever|whatever)\b`), 0.15},
	{phrase(`(?i)\bwhat (it|they|the [a-z]+|is|was|has)\b`), 0.3},
	{phrase(`(?:^|[.!?:]\s+)What [a-z]+`), 0.1},
	{phrase(`(?i)\bwhose\b`), 0.2},
	{phrase(`(?i)\b(by|in|from|under|to|with|on|at|over) (which|whom)\b`), 0.1},
	{phrase(`(?i)\bof (its|their) own\b`), 0.1},
	{phrase(`(?i)\b(is|are|was|were|be) told\b`), 0.1},
	{phrase(`(?i)\b(behind|beside)\b`), 0.4},
}

// phrase compiles an expression. A space in it is a space or the end of a line.
func phrase(expression string) *regexp.Regexp {
	return regexp.MustCompile(strings.ReplaceAll(expression, " ", `\s+`))
}

// TestSentencesNameTheirSubject counts the phrases in the comments, the names of tests and the
// documents of all modules.
func TestSentencesNameTheirSubject(t *testing.T) {
	atRoot(t)
	words, found := 0, make([][]string, len(backward))
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && strings.HasPrefix(d.Name(), ".") && path != "." {
			return fs.SkipDir
		}
		for _, block := range english(t, path) {
			words += len(strings.Fields(block))
			for i, b := range backward {
				for _, at := range b.phrase.FindAllStringIndex(block, -1) {
					found[i] = append(found[i], path+": "+around(block, at))
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if words < 100_000 {
		t.Errorf("only %d words found: the test has gone blind", words)
	}
	for i, b := range backward {
		rate := float64(len(found[i])) * 1000 / float64(words)
		t.Logf("%-90s %.2f in 1,000 words, at most %.2f", b.phrase, rate, b.most)
		if rate > b.most {
			t.Errorf("%s stands %.2f times in 1,000 words, at most %.2f are allowed; name the subject instead:\n%s",
				b.phrase, rate, b.most, strings.Join(found[i], "\n"))
		}
	}
}

// TestPhrasesAreFoundInComments holds the test above against text that it has to object to.
func TestPhrasesAreFoundInComments(t *testing.T) {
	path := filepath.Join(t.TempDir(), "made_up_test.go")
	source := "package p\n\n// The lease is over, so nobody\n// hears of\n// those that wait.\n" +
		"// What the lock is told, by\n// which list it is behind, and whose\n// name is of\n// its own.\nfunc TestWhoeverWaits() { _ = `one that is no comment` }\n"
	if err := os.WriteFile(path, []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	text := strings.Join(english(t, path), "\n")
	for i, want := range []int{1, 1, 1, 2, 1, 1, 1, 1, 1, 1, 1} {
		if n := len(backward[i].phrase.FindAllString(text, -1)); n != want {
			t.Errorf("%d times %s in %q, want %d", n, backward[i].phrase, text, want)
		}
	}
}

// code is the code in a document.
var code = regexp.MustCompile("(?s)```.*?```|`[^`\n]*`")

// english returns the English in a file: the text of a document, the comments of a source file and
// the names of its tests. A comment that goes on in the next line is one block.
func english(t *testing.T, path string) (blocks []string) {
	t.Helper()
	ext := filepath.Ext(path)
	if ext != ".md" && ext != ".go" && ext != ".lua" && ext != ".sql" {
		return nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	switch ext {
	case ".md":
		return strings.Split(code.ReplaceAllString(string(text), "CODE"), "\n\n")
	case ".go":
		file, err := parser.ParseFile(token.NewFileSet(), path, text, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		if ast.IsGenerated(file) {
			return nil
		}
		for _, comment := range file.Comments {
			blocks = append(blocks, comment.Text())
		}
		for _, decl := range file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Test") {
				blocks = append(blocks, hump.ReplaceAllString(f.Name.Name, " $1"))
			}
		}
	default:
		for line := range strings.Lines(string(text)) {
			if _, comment, ok := strings.Cut(line, "--"); ok {
				blocks = append(blocks, comment)
			}
		}
	}
	return blocks
}

// hump is where a word begins in the name of a test.
var hump = regexp.MustCompile(`([A-Z])`)

// around returns the line of a phrase.
func around(block string, at []int) string {
	begin, end := strings.LastIndexByte(block[:at[0]], '\n')+1, len(block)
	if i := strings.IndexByte(block[at[1]:], '\n'); i >= 0 {
		end = at[1] + i
	}
	return strings.Join(strings.Fields(block[begin:end]), " ")
}
