package checks_test

import (
	"go/ast"
	"go/doc"
	doctext "go/doc/comment"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// unresolved is a link of a comment that is shown as plain text.
var unresolved = regexp.MustCompile(`\[\*?([A-Za-z0-9]+\.)*[A-Z][A-Za-z0-9]*\]`)

// A reader of pkg.go.dev sees [idempotency.Under] in brackets, and no link, if the package does not
// import idempotency, or the name has changed.
func TestLinksOfPublicCommentsLeadSomewhere(t *testing.T) {
	atRoot(t)
	dirs := map[string]bool{}
	for _, file := range files(t, ".go") {
		dir := filepath.Dir(file)
		private := strings.Contains(dir, "internal") || strings.HasPrefix(dir, "examples") || strings.HasPrefix(dir, "trust") || strings.HasPrefix(dir, "bench")
		if !private && !strings.HasSuffix(file, "_test.go") {
			dirs[dir] = true
		}
	}
	links := 0
	for _, dir := range slices.Sorted(maps.Keys(dirs)) {
		found, all := linksIn(t, dir)
		links += all
		for _, link := range found {
			t.Errorf("%s: %s is no link. Write the whole path, or define the link at the end of the comment", dir, link)
		}
	}
	if links < 100 {
		t.Errorf("only %d links found: the test has gone blind", links)
	}
}

// linksIn returns the links in the comments of a package that pkg.go.dev does not resolve, and the number of
// those that it does.
func linksIn(t *testing.T, dir string) (bad []string, good int) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	fset := token.NewFileSet()
	var parsed []*ast.File
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(fset, path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		parsed = append(parsed, file)
	}
	pkg, err := doc.NewFromFiles(fset, parsed, dir)
	if err != nil {
		t.Fatal(err)
	}
	texts := []string{pkg.Doc}
	add := func(values []*doc.Value, funcs []*doc.Func) {
		for _, v := range values {
			texts = append(texts, v.Doc)
		}
		for _, f := range funcs {
			texts = append(texts, f.Doc)
		}
	}
	add(slices.Concat(pkg.Consts, pkg.Vars), pkg.Funcs)
	for _, of := range pkg.Types {
		texts = append(texts, of.Doc)
		add(slices.Concat(of.Consts, of.Vars), slices.Concat(of.Funcs, of.Methods))
	}
	for _, text := range texts {
		for _, block := range pkg.Parser().Parse(text).Content {
			plain, links := inline(block)
			good += links
			bad = append(bad, unresolved.FindAllString(plain, -1)...)
		}
	}
	return bad, good
}

// inline returns the plain text of a block of a comment, and the number of its links.
func inline(block doctext.Block) (plain string, links int) {
	var texts []doctext.Text
	switch b := block.(type) {
	case *doctext.Paragraph:
		texts = b.Text
	case *doctext.Heading:
		texts = b.Text
	case *doctext.List:
		for _, item := range b.Items {
			for _, inner := range item.Content {
				p, n := inline(inner)
				plain, links = plain+p+"\n", links+n
			}
		}
	}
	for _, text := range texts {
		switch x := text.(type) {
		case doctext.Plain:
			plain += string(x)
		case *doctext.Link, *doctext.DocLink:
			links++
		}
	}
	return plain, links
}
