package checks_test

import (
	"flag"
	"fmt"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/interlock-go/interlock/internal/version"
)

var update = flag.Bool("update", false, "write the lists of modules")

// development are the nested modules, without the examples, that users do not import.
var development = []string{"bench", "tools", "trust", "trust/consensus"}

// nested returns the nested modules: those for users, and the others.
func nested(t *testing.T) (users, others []string) {
	t.Helper()
	for _, file := range files(t, ".mod") {
		switch dir := path.Dir(file); {
		case dir == ".":
		case slices.Contains(development, dir) || strings.HasPrefix(dir, "examples/"):
			others = append(others, dir)
		default:
			users = append(users, dir)
		}
	}
	slices.Sort(users)
	slices.Sort(others)
	if len(users) < 5 || len(others) < 5 {
		t.Fatalf("the nested modules are %q and %q: the test has gone blind", users, others)
	}
	return users, others
}

// Each list of modules is made of the go.mod files that there are; go test -update writes them. The
// script of a release takes its tags from the table of RELEASING.md. Users install a program and do not
// import it.
func TestEachListOfModulesIsComplete(t *testing.T) {
	atRoot(t)
	users, others := nested(t)
	imported := slices.DeleteFunc(slices.Clone(users), func(dir string) bool { return strings.HasPrefix(dir, "cmd/") })
	quoted := "`" + strings.Join(imported, "`, `") + "`"
	table := fmt.Sprintf("| the root | `%s` |\n", version.Released)
	for _, dir := range users {
		table += fmt.Sprintf("| `%s` | `%[1]s/%s` |\n", dir, version.Released)
	}
	for _, dir := range others {
		why := "it is for the development of this one"
		if strings.HasPrefix(dir, "examples/") {
			why = "it is a program to read"
		}
		table += fmt.Sprintf("| `%s` | none: %s |\n", dir, why)
	}
	for _, list := range []struct{ file, place, want string }{
		{"RELEASING.md", `\| the root \| (?:.*\n)*?\n`, table + "\n"},
		{".github/dependabot.yml", `directories: \[/,.*`, "directories: [/, /" + strings.Join(users, ", /") + "]"},
		{".github/dependabot.yml", `directories: \[/[a-z].*`, "directories: [/" + strings.Join(others, ", /") + "]"},
		{"docs/use.md", "Separate modules, each with its `go get`: .*", "Separate modules, each with its `go get`: " + quoted + "."},
		{"doc.go", `(?m)^// Separate modules: (?:.*\n)*?//\n`, comment("Separate modules: "+strings.Join(imported, ", ")+".") + "//\n"},
	} {
		text, place := read(t, list.file), regexp.MustCompile(list.place)
		switch got := place.FindString(text); {
		case got == "":
			t.Errorf("%s has no place like %s", list.file, list.place)
		case got == list.want:
		case *update:
			text = strings.Replace(text, got, list.want, 1)
			if err := os.WriteFile(list.file, []byte(text), 0o644); err != nil { //nolint:gosec // a file that all may read
				t.Fatal(err)
			}
		default:
			t.Errorf("%s says %q; want %q. go test -run ListOfModules ./internal/checks -update writes it", list.file, got, list.want)
		}
	}
}

// comment makes lines of a comment.
func comment(text string) string {
	lines, line := "", "//"
	for word := range strings.FieldsSeq(text) {
		if len(line)+1+len(word) > 90 {
			lines, line = lines+line+"\n", "//"
		}
		line += " " + word
	}
	return lines + line + "\n"
}

// An editor shows who uses a function, and renames it, also in the tests of the other lanes.
func TestEditorsSeeTheTestsOfAllLanes(t *testing.T) {
	atRoot(t)
	settings := read(t, ".vscode/settings.json")
	lane := regexp.MustCompile(`(?m)^//go:build (?:.* )?(integration|long)\b`)
	seen := 0
	for _, file := range files(t, ".go") {
		for _, m := range lane.FindAllStringSubmatch(read(t, file), -1) {
			if seen++; !regexp.MustCompile(`-tags=[a-z,]*\b` + m[1] + `\b`).MatchString(settings) {
				t.Fatalf("%s needs the tag %s, and .vscode/settings.json does not give it to gopls", file, m[1])
			}
		}
	}
	if seen < 50 {
		t.Errorf("only %d tests of other lanes found: the test has gone blind", seen)
	}
}
