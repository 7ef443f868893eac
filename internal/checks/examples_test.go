package checks_test

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// withoutExample are the public packages without an example that runs, and why.
var withoutExample = map[string]string{
	".":                                      "it has no code of its own",
	"core/adapter/adaptertest":               "it is a test suite: examples/adapter shows it",
	"core/idempotency/endpoint/endpointtest": "it is a test suite: examples/adapter shows it",
	"core/driver/drivertest":                 "it is a test suite: it takes a testing.T",
	"core/idempotency/explore":               "it takes a testing.T: its tests are the examples",
	"core/idempotency/record/recordtest":     "it is a test suite: it takes a testing.T",
	"core/pgstore":                           "it needs a PostgreSQL",
	"etcdstore":                              "it needs an etcd",
	"natsstore":                              "it needs a NATS",
	"pgxstore":                               "it needs a PostgreSQL",
	"zkstore":                                "it needs a ZooKeeper",
}

// TestEveryPublicPackageHasAnExampleThatRuns looks in each package for users for an example
// with output that go test compares. Packages that measure and test the module are not for
// users.
func TestEveryPublicPackageHasAnExampleThatRuns(t *testing.T) {
	atRoot(t)
	public, shown := map[string]bool{}, map[string]bool{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			switch name := d.Name(); {
			case strings.HasPrefix(name, ".") && path != ".", name == "internal", name == "testdata",
				path == "cmd", path == "examples", path == "tools", path == "bench", path == "trust":
				return fs.SkipDir
			}
			return nil
		}
		if filepath.Ext(path) != ".go" {
			return nil
		}
		dir := filepath.ToSlash(filepath.Dir(path))
		isTest := strings.HasSuffix(path, "_test.go")
		mode := parser.PackageClauseOnly
		if isTest {
			mode = parser.ParseComments
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, mode)
		switch {
		case err != nil:
			return err
		case isTest:
			shown[dir] = shown[dir] || runs(file)
		case file.Name.Name != "main":
			public[dir] = true
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for dir := range public {
		switch reason, excused := withoutExample[dir]; {
		case !shown[dir] && !excused:
			t.Errorf("%s has no example with an output, so no reader sees the package at work", dir)
		case shown[dir] && excused:
			t.Errorf("%s has an example that runs, but is excused from having one: %q", dir, reason)
		}
	}
	for dir := range withoutExample {
		if !public[dir] {
			t.Errorf("%s is excused from having an example, but is no public package", dir)
		}
	}
	if len(public) < 25 {
		t.Errorf("only %d public packages found: the test has gone blind", len(public))
	}
}

// runs reports whether a file has an example that go test runs.
func runs(file *ast.File) bool {
	for _, example := range doc.Examples(file) {
		if example.Output != "" || example.EmptyOutput {
			return true
		}
	}
	return false
}
