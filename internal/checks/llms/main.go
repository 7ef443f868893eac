// Command llms writes the documents for language models, in the form of llmstxt.org:
// llms.txt, an index, and llms-full.txt, the texts themselves. It runs in the root of the
// repository.
//
//	go run ./internal/checks/llms
package main

import (
	"cmp"
	"fmt"
	"go/doc"
	"go/parser"
	"go/token"
	"io/fs"
	"log"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

const (
	module    = "github.com/interlock-go/interlock"
	raw       = "https://raw.githubusercontent.com/interlock-go/interlock/main/"
	reference = "https://pkg.go.dev/"
)

func main() {
	root := os.DirFS(".")
	texts, err := collect(root)
	if err != nil {
		log.Fatal(err)
	}
	for name, text := range map[string]string{"llms.txt": short(texts), "llms-full.txt": full(texts)} {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil { //nolint:gosec // it is to be published
			log.Fatal(err)
		}
	}
}

// text is a page, the comment of a package, or a program, which has no body.
type text struct {
	section, title, link, about, body string
}

// sections are the sections of llms.txt, in order. A model that has little room leaves the last one.
var sections = []string{"Examples", "Documents", "Packages", "Optional"}

// optional are the pages that the use of the toolkit does not need.
var optional = []string{
	"CHANGELOG.md", "CONTRIBUTING.md", "RELEASING.md", "SECURITY.md",
	"docs/costs.md", "docs/decisions.md", "docs/evidence.md",
}

// collect reads the README, the documents and the comments of the packages for users.
func collect(root fs.FS) ([]text, error) {
	pages := []string{"README.md", "docs/openapi.yaml"}
	for _, pattern := range []string{"docs/*.md", "docs/*/*.md"} {
		found, err := fs.Glob(root, pattern)
		if err != nil {
			return nil, err
		}
		pages = append(pages, found...)
	}
	pages = append(pages, optional...)
	var texts []text
	for i, name := range pages {
		if slices.Index(pages, name) < i {
			continue // it is optional
		}
		b, err := fs.ReadFile(root, name)
		if err != nil {
			return nil, err
		}
		texts = append(texts, page(name, string(b)))
	}
	examples, err := programs(root)
	if err != nil {
		return nil, err
	}
	texts = append(texts, examples...)
	packages, err := comments(root)
	slices.SortStableFunc(texts, func(a, b text) int {
		return cmp.Compare(slices.Index(sections, a.section), slices.Index(sections, b.section))
	})
	return append(texts, packages...), err
}

// page makes a text of a page: its title, and the line that says who it is for. Another file than a page has its first
// line.
func page(name, body string) text {
	t := text{section: "Documents", title: name, link: raw + name, body: body}
	if slices.Contains(optional, name) {
		t.section = "Optional"
	}
	for line := range strings.Lines(body) {
		line = strings.TrimSpace(line)
		title, ok := strings.CutPrefix(line, "# ")
		if ok && path.Ext(name) != ".md" { // a comment
			t.about = title
			break
		}
		if ok && t.title == name {
			t.title = title
		}
		if strings.HasPrefix(line, "**For** ") {
			t.about = strings.Replace(line, "**For**", "for", 1)
			break
		}
	}
	return t
}

// comments returns the comments of the packages that users import.
func comments(root fs.FS) (texts []text, err error) {
	err = fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		switch base := path.Base(name); {
		case name == ".":
			return nil
		case strings.HasPrefix(base, "."), slices.Contains([]string{"internal", "testdata", "examples", "bench", "tools", "trust", "docs", "scripts"}, base):
			return fs.SkipDir
		}
		comment, err := commentOf(root, name)
		if err == nil && comment != "" {
			texts = append(texts, text{
				section: "Packages", title: name, link: reference + path.Join(module, name),
				about: synopsis(comment), body: comment,
			})
		}
		return err
	})
	return texts, err
}

// programs returns the examples that are whole programs.
func programs(root fs.FS) (texts []text, err error) {
	found, err := fs.Glob(root, "examples/*/main.go")
	if err != nil {
		return nil, err
	}
	for _, name := range found {
		dir := path.Dir(name)
		comment, err := commentOf(root, dir)
		if err != nil {
			return nil, err
		}
		texts = append(texts, text{section: "Examples", title: dir, link: raw + name, about: synopsis(comment)})
	}
	return texts, nil
}

// synopsis returns the first sentence of a comment, without its full stop.
func synopsis(comment string) string {
	return strings.TrimSuffix(new(doc.Package).Synopsis(comment), ".")
}

// commentOf returns the comment of the package in a directory, empty if there is none.
func commentOf(root fs.FS, dir string) (string, error) {
	files, err := fs.Glob(root, path.Join(dir, "*.go"))
	if err != nil {
		return "", err
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		source, err := fs.ReadFile(root, name)
		if err != nil {
			return "", err
		}
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Base(name), source, parser.ParseComments|parser.PackageClauseOnly)
		if err != nil {
			return "", err
		}
		if file.Doc != nil {
			return file.Doc.Text(), nil
		}
	}
	return "", nil
}

// short is llms.txt.
func short(texts []text) string {
	var b strings.Builder
	b.WriteString("# Interlock\n\n> " + promise(texts) + "\n")
	if code := program(bodyOf(texts, "README.md")); code != "" {
		b.WriteString("\nThis is a whole program:\n\n" + code)
	}
	if kept := rules(bodyOf(texts, "docs/use.md")); kept != "" {
		b.WriteString("\nRules that code must keep:\n\n" + kept)
	}
	for _, section := range sections {
		b.WriteString("\n## " + section + "\n\n")
		for _, t := range texts {
			if t.section != section {
				continue
			}
			fmt.Fprintf(&b, "- [%s](%s)", t.title, t.link)
			if t.about != "" {
				b.WriteString(": " + t.about)
			}
			b.WriteString("\n")
		}
	}
	return b.String()
}

// promise is the beginning of the README.
func promise(texts []text) string {
	for paragraph := range strings.SplitSeq(bodyOf(texts, "README.md"), "\n\n") {
		if paragraph != "" && paragraph[:1] != "#" && paragraph[:1] != "[" {
			return paragraph
		}
	}
	return ""
}

// bodyOf returns the text of a page, empty if there is none.
func bodyOf(texts []text, name string) string {
	for _, t := range texts {
		if t.link == raw+name {
			return t.body
		}
	}
	return ""
}

// program returns the first block of a page that is a whole program, and the block after it, which runs it.
func program(page string) string {
	_, code, found := strings.Cut(page, "```go\npackage main\n")
	if !found {
		return ""
	}
	code, rest, _ := strings.Cut(code, "```\n")
	run := ""
	if after, ok := strings.CutPrefix(rest, "\n```sh\n"); ok {
		command, _, _ := strings.Cut(after, "```\n")
		run = "\n```sh\n" + command + "```\n"
	}
	return "```go\npackage main\n" + code + "```\n" + run
}

// rules returns the section of a page with the rules that code must keep.
func rules(page string) string {
	_, section, _ := strings.Cut(page, "\n## Rules that code must keep\n\n")
	section, _, _ = strings.Cut(section, "\n## ")
	return section
}

// full is llms-full.txt: all that is not optional.
func full(texts []text) string {
	var b strings.Builder
	for _, t := range texts {
		if t.section != "Optional" && t.body != "" {
			fmt.Fprintf(&b, "<!-- %s -->\n\n%s\n", t.link, strings.TrimRight(t.body, "\n")+"\n")
		}
	}
	return b.String()
}
