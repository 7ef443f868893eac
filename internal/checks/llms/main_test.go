package main

import (
	"os"
	"strings"
	"testing"
	"testing/fstest"
)

func TestTheIndexForModelsIsCurrent(t *testing.T) {
	const root = "../../.."
	texts, err := collect(os.DirFS(root))
	if err != nil {
		t.Fatal(err)
	}
	kept, err := os.ReadFile(root + "/llms.txt")
	if err != nil {
		t.Fatal(err)
	}
	if want := short(texts); string(kept) != want {
		t.Errorf("llms.txt is out of date: %s\nWrite it anew with `make docs`, and commit it", difference(string(kept), want))
	}
	for _, want := range []string{"idempotency.MarkEffect(r.Context())", "go vet -vettool=", "**Closing**: server, engine, locker, store", "[examples/hello]("} {
		if !strings.Contains(short(texts), want) {
			t.Errorf("llms.txt lacks %q, of the program, the rules or the examples", want)
		}
	}
	for _, name := range []string{"README.md", "docs/guarantees.md", "docs/problems.md", "docs/openapi.yaml"} {
		if !strings.Contains(full(texts), "<!-- "+raw+name+" -->") {
			t.Errorf("llms-full.txt lacks %s", name)
		}
	}
}

// difference returns the first line that differs.
func difference(kept, want string) string {
	was, is := strings.Split(kept, "\n"), strings.Split(want, "\n")
	for i, line := range is {
		if i >= len(was) || was[i] != line {
			return "line " + line
		}
	}
	return "it has more lines"
}

func TestTheIndexBeginsWithAProgramAndRulesAndListsPagesByWhoTheyAreFor(t *testing.T) {
	files := fstest.MapFS{
		"docs/openapi.yaml": {Data: []byte("# Answers.\nopenapi: 3.1.0\n")},
		"README.md": {Data: []byte("# Interlock\n\n[![a](b)](c)\n\nIt locks.\n\n```sh\nls\n```\n\n" +
			"```go\npackage main\n\nfunc main() {}\n```\n\n```sh\ngo run .\n```\n\n## More\n")},
		"docs/use.md":                 {Data: []byte("# Use\n\n**For** all.\n\n**For** none.\n\n## Rules that code must keep\n\n- Release.\n\n## Options\n")},
		"examples/bank/main.go":       {Data: []byte("// Command bank pays. It has more.\npackage main\n")},
		"examples/bank/other.go":      {Data: []byte("package main\n")},
		"core/doc.go":                 {Data: []byte("// Package core locks. It has more.\npackage core\n")},
		"core/internal/hidden/doc.go": {Data: []byte("// Package hidden hides.\npackage hidden\n")},
	}
	for _, name := range optional {
		files[name] = &fstest.MapFile{Data: []byte("# Other\n")}
	}
	texts, err := collect(files)
	if err != nil {
		t.Fatal(err)
	}
	got := short(texts)
	want := "# Interlock\n\n> It locks.\n\n" +
		"This is a whole program:\n\n```go\npackage main\n\nfunc main() {}\n```\n\n```sh\ngo run .\n```\n\n" +
		"Rules that code must keep:\n\n- Release.\n\n" +
		"## Examples\n\n- [examples/bank](" + raw + "examples/bank/main.go): Command bank pays\n\n## Documents\n\n" +
		"- [Interlock](" + raw + "README.md)\n- [docs/openapi.yaml](" + raw + "docs/openapi.yaml): Answers.\n- [Use](" + raw + "docs/use.md): for all.\n\n" +
		"## Packages\n\n- [core](" + reference + module + "/core): Package core locks\n\n## Optional\n\n"
	if !strings.HasPrefix(got, want) {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	if all := full(texts); !strings.Contains(all, "It has more.") || strings.Contains(all, "hides") || strings.Contains(all, "# Other") {
		t.Errorf("%s", all)
	}
}
