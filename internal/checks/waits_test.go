package checks_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"slices"
	"strings"
	"testing"
)

// waiting are the functions that may wait for code of the user: for the handler of a log
// (logs.Requests), or for an observer (Await of worker.Queue). Each runs on the goroutine of a
// caller, for which no other lease or claim waits. Goroutines that end or renew leases, or repeat
// commits, have logs.Log, which has no method that waits.
var waiting = map[string][]string{
	"core/internal/logs/requests.go":    {"Requests.await"},
	"core/lease.go":                     {"Lease.releaseObserved"},
	"core/handover.go":                  {"Lease.HandOver"},
	"core/locker.go":                    {"Locker.Close"},
	"core/guard.go":                     {"Guard", "NewGuard"},
	"core/fenced.go":                    {"newFenced"},
	"core/relay.go":                     {"Relay"},
	"core/idempotency/engine.go":        {"Engine", "newEngine"},
	"core/idempotency/once/function.go": {"unencodable"},
}

// waits are the names by which a waiting function is called, or gets what waits.
var waits = []string{"worker.Queue.Await", "logs.Requests"}

func TestNothingThatALeaseDependsOnWaitsForALogOrAnObserver(t *testing.T) {
	atRoot(t)
	found := map[string][]string{}
	for _, file := range files(t, ".go") {
		if strings.HasSuffix(file, "_test.go") || strings.HasPrefix(file, "core/internal/worker/") {
			continue
		}
		if strings.HasPrefix(file, "internal/capture/") { // a request holds its claim there
			for _, call := range directLogs(t, file, read(t, file)) {
				t.Errorf("%s: %s waits for the handler of the log: use the Attempt", file, call)
			}
		}
		if !strings.HasPrefix(file, "core/") {
			continue
		}
		for _, use := range waitingIn(t, file, read(t, file)) {
			found[file] = append(found[file], use)
			if !slices.Contains(waiting[file], use) {
				t.Errorf("%s: %s may wait for a log or an observer (%s): give it a logs.Log, or say in internal/checks why no lease depends on it",
					file, use, strings.Join(waits, ", "))
			}
		}
		for _, call := range directLogs(t, file, read(t, file)) {
			t.Errorf("%s: %s waits for the handler of the log: use logs.Log", file, call)
		}
	}
	for _, file := range []string{"core/idempotency/background.go", "core/idempotency/watchdog.go"} {
		for _, call := range ofRequests(t, file, read(t, file)) {
			t.Errorf("%s: %s is for the goroutine of a request, and may wait for a log or an observer", file, call)
		}
	}
	for file, uses := range waiting {
		for _, use := range uses {
			if !slices.Contains(found[file], use) {
				t.Errorf("%s: %s does not wait any more: take it out of the list", file, use)
			}
		}
	}
}

// waitingIn returns the declarations of a file that mention logs.Requests or call Await of a queue.
func waitingIn(t *testing.T, file, text string) (uses []string) {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, text, 0)
	if err != nil {
		t.Fatal(err)
	}
	queue := slices.ContainsFunc(parsed.Imports, func(i *ast.ImportSpec) bool {
		return strings.HasSuffix(i.Path.Value, `internal/worker"`)
	})
	for _, decl := range parsed.Decls {
		for name, node := range declared(decl) {
			ast.Inspect(node, func(n ast.Node) bool {
				s, ok := n.(*ast.SelectorExpr)
				if !ok {
					return true
				}
				x, _ := s.X.(*ast.Ident)
				mentions := x != nil && x.Name == "logs" && s.Sel.Name == "Requests"
				awaits := s.Sel.Name == "Await" && (queue || strings.HasPrefix(file, "core/internal/logs/") || path.Dir(file) == "core")
				if (mentions || awaits) && !slices.Contains(uses, name) {
					uses = append(uses, name)
				}
				return true
			})
		}
	}
	return uses
}

// declared returns the parts of a declaration by their names; of a method, with the name of its type.
func declared(decl ast.Decl) map[string]ast.Node {
	switch d := decl.(type) {
	case *ast.FuncDecl:
		name := d.Name.Name
		if d.Recv != nil {
			of := d.Recv.List[0].Type
			if star, is := of.(*ast.StarExpr); is {
				of = star.X
			}
			if id, is := of.(*ast.Ident); is {
				name = id.Name + "." + name
			}
		}
		return map[string]ast.Node{name: d}
	case *ast.GenDecl:
		all := map[string]ast.Node{}
		for _, spec := range d.Specs {
			switch s := spec.(type) {
			case *ast.TypeSpec:
				all[s.Name.Name] = s
			case *ast.ValueSpec:
				all[s.Names[0].Name] = s
			}
		}
		return all
	}
	return nil
}

// logged are the functions of log/slog and log that write a line.
var logged = []string{
	"Debug", "DebugContext", "Info", "InfoContext", "Warn", "WarnContext", "Error", "ErrorContext", "Log", "LogAttrs",
	"Print", "Printf", "Println",
}

// directLogs returns the calls of a file that write a line and wait for it. Package fleet is for
// operators: its program ends when the line is written.
func directLogs(t *testing.T, file, text string) (calls []string) {
	t.Helper()
	if strings.HasPrefix(file, "core/fleet/") {
		return nil
	}
	parsed, err := parser.ParseFile(token.NewFileSet(), file, text, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(parsed, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok && slices.Contains(logged, s.Sel.Name) {
			if x, _ := s.X.(*ast.Ident); x != nil && (x.Name == "slog" || x.Name == "log") && imports(parsed, x.Name) {
				calls = append(calls, x.Name+"."+s.Sel.Name)
			}
		}
		return true
	})
	return calls
}

// ofRequests returns the calls of a file to the methods of an Engine that log or report for a request.
func ofRequests(t *testing.T, file, text string) (calls []string) {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, text, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(parsed, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			if s, ok := call.Fun.(*ast.SelectorExpr); ok && slices.Contains([]string{"log", "logRefusal", "logUnknown", "report"}, s.Sel.Name) {
				calls = append(calls, s.Sel.Name)
			}
		}
		return true
	})
	return calls
}

// imports reports whether a file imports the package of the standard library for logs of that name.
func imports(f *ast.File, name string) bool {
	return slices.ContainsFunc(f.Imports, func(i *ast.ImportSpec) bool {
		return i.Name == nil && (i.Path.Value == `"`+name+`"` || i.Path.Value == `"log/`+name+`"`)
	})
}

func TestCallsThatWaitAreFoundInAMadeUpFile(t *testing.T) {
	const text = `package core
import ("log/slog"; "x/core/internal/logs")
type guard struct { lines logs.Requests }
func (c *callbacks) lost() { c.queue.Await(nil, 0); slog.Warn("lost") }
func (c *callbacks) told() { c.log.Warn("told"); c.engine.log("told") }
`
	if got := strings.Join(waitingIn(t, "core/x.go", text), " "); got != "guard callbacks.lost" {
		t.Errorf("found %q; want guard, and callbacks.lost", got)
	}
	if got := strings.Join(directLogs(t, "core/x.go", text), " "); got != "slog.Warn" {
		t.Errorf("found %q; want slog.Warn", got)
	}
	if got := strings.Join(ofRequests(t, "core/x.go", text), " "); got != "log" {
		t.Errorf("found %q; want log, the method of an engine", got)
	}
}
