package checks_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// module is the path of this module, which import rules leave out.
const module = "github.com/interlock-go/interlock"

// pkg is the output of `go list -json` about a package; Imports are the imports of its files,
// without tests.
type pkg struct {
	ImportPath string
	Imports    []string
	Standard   bool
}

func TestPackagesImportOnlyWhatTheirLayerMay(t *testing.T) {
	atRoot(t)
	var graph []pkg
	for _, name := range strings.Fields(goList(t, ".", "std")) {
		graph = append(graph, pkg{ImportPath: name, Standard: true})
	}
	users, _ := nested(t)
	for _, dir := range append(users, ".") {
		dec := json.NewDecoder(strings.NewReader(goList(t, dir, "-json=ImportPath,Imports", "./...")))
		for dec.More() {
			var p pkg
			if err := dec.Decode(&p); err != nil {
				t.Fatal(err)
			}
			graph = append(graph, p)
		}
	}
	for _, complaint := range forbidden(graph) {
		t.Error(complaint)
	}
	for _, want := range []string{"./core", "./httplock", "./grpclock", "./otel", "./pgxstore"} {
		if !slices.ContainsFunc(graph, func(p pkg) bool { return short(p.ImportPath) == want && len(p.Imports) > 0 }) {
			t.Errorf("%s is not among %d packages: the test has gone blind", want, len(graph))
		}
	}
}

// The tests of the adapter that shows what authors elsewhere can use are such an author's, too.
func TestTheExampleOfAnAdapterUsesPublicPackagesOnly(t *testing.T) {
	atRoot(t)
	var p struct{ Imports, TestImports, XTestImports []string }
	if err := json.Unmarshal([]byte(goList(t, ".", "-json=Imports,TestImports,XTestImports", "./examples/adapter")), &p); err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(p.XTestImports, module+"/core/adapter/adaptertest") {
		t.Errorf("the tests import %q; want the suite of adapters among them", p.XTestImports)
	}
	for _, path := range slices.Concat(p.Imports, p.TestImports, p.XTestImports) {
		if slices.Contains(strings.Split(path, "/"), "internal") {
			t.Errorf("examples/adapter imports %s: want public packages only", path)
		}
	}
}

// goList runs go list in a directory. This lists a module without downloaded dependencies,
// too.
func goList(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"list", "-e"}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off") // the workspace of scripts/newest.sh has one module
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %q: %v\n%s", dir, cmd.Args, err, &stderr)
	}
	return string(out)
}

// forbidden returns a complaint for each import of the module's packages that
// their layer does not allow.
func forbidden(graph []pkg) (complaints []string) {
	standard := map[string]bool{"C": false, "unsafe": true}
	for _, p := range graph {
		standard[p.ImportPath] = p.Standard
	}
	for _, p := range graph {
		path := short(p.ImportPath)
		if path != "." && !strings.HasPrefix(path, "./") {
			continue
		}
		i := slices.IndexFunc(layers, func(l layer) bool { return covers(l.packages, path) })
		if i < 0 {
			complaints = append(complaints, fmt.Sprintf("%s is in no layer: say in the table what it may import, and why", path))
			continue
		}
		for _, imported := range p.Imports {
			target := short(imported)
			among := func(pattern string) bool { return covers(pattern, target) }
			switch {
			case standard[imported]:
			case slices.ContainsFunc(testOnly, among):
				if !slices.ContainsFunc(testOnly, func(pattern string) bool { return covers(pattern, path) }) {
					complaints = append(complaints, fmt.Sprintf("%s imports %s: that is for tests", path, target))
				}
			case !slices.ContainsFunc(layers[i].imports, among):
				complaints = append(complaints, fmt.Sprintf("%s imports %s: %s", path, target, layers[i].reason))
			}
		}
	}
	return complaints
}

// short is an import path with "." for the module's.
func short(path string) string {
	if rest, ok := strings.CutPrefix(path, module); ok && (rest == "" || rest[0] == '/') {
		return "." + rest
	}
	return path
}

// covers reports whether a pattern covers a path.
func covers(pattern, path string) bool {
	parent, deep := strings.CutSuffix(pattern, "/...")
	return pattern == "..." || path == parent || deep && strings.HasPrefix(path, parent+"/")
}

// A checker that never complains would look the same as a tidy module.
func TestForbiddenImportsAreFoundInAMadeUpModule(t *testing.T) {
	for name, c := range map[string]struct {
		path, imports, want string
	}{
		"core imports a library":          {"./core", "github.com/redis/go-redis/v9", "the standard library only"},
		"core imports C":                  {"./core", "C", "the standard library only"},
		"core looks like the standard":    {"./core", "iox/y", "the standard library only"},
		"core imports the library":        {"./core", "net/http", ""},
		"core imports the contract":       {"./core", "./core/driver", ""},
		"store imports another go-redis":  {"./core/redisstore", "github.com/redis/go-redis/v90", "on go-redis"},
		"adapter imports another adapter": {"./ginlock", "./httplock", "its own framework"},
		"adapter imports its own":         {"./echolock", "github.com/labstack/echo/v4/middleware", ""},
		"adapter imports a store":         {"./httplock", "./core/redisstore", "net/http"},
		"adapter imports httpx":           {"./ginlock", "./internal/httpx", ""},
		"adapter imports all frameworks":  {"./httplock", "./internal/frameworks", "for tests"},
		"program imports a test server":   {"./examples/payments", "./internal/redistest", "for tests"},
		"annotation is part of grpclock":  {"./grpclock", "./grpclock/lockpb/interlock/v1", ""},
		"telemetry imports the API":       {"./otel", "go.opentelemetry.io/otel/trace/noop", ""},
		"new internal package":            {"./internal/x", "./core", ""},
		"pgxstore imports go-redis":       {"./pgxstore", "github.com/redis/go-redis/v9", "no other library"},
		"tuslock imports files":           {"./tuslock", "github.com/tus/tusd/v2/pkg/filestore", "no store"},
		"connectlock imports a store":     {"./connectlock", "./core/redisstore", "another transport"},
		"example imports everything":      {"./examples/payments", "./ginlock", ""},
		"package without a layer":         {"./corex", "fmt", "in no layer"},
		"package of another module":       {"github.com/interlock-go/interlockx", "./core", ""},
	} {
		t.Run(name, func(t *testing.T) {
			graph := []pkg{
				{ImportPath: "fmt", Standard: true},
				{ImportPath: "net/http", Standard: true},
				{ImportPath: "iox/y"}, // without a dot, and not the standard library's
				{ImportPath: long(c.path), Imports: []string{"fmt", long(c.imports)}},
			}
			got := forbidden(graph)
			switch {
			case c.want == "" && len(got) > 0:
				t.Errorf("%q; want nothing", got)
			case c.want != "" && (len(got) != 1 || !strings.Contains(got[0], c.want)):
				t.Errorf("%q; want one about %q", got, c.want)
			}
		})
	}
}

// long is the opposite of short.
func long(path string) string {
	if rest, ours := strings.CutPrefix(path, "."); ours {
		return module + rest
	}
	return path
}
