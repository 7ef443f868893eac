// Package analyzer reports code that breaks a rule of Interlock that the compiler cannot check.
// It looks at packages that import Interlock, and leaves out tests and packages that import testing. It prefers silence to a
// false report: it follows a variable to its only assignment, within one package, and reports
// nothing where that is not enough.
//
// The rules, by the first word of a report:
//
//	context      work under a lock or in an idempotent endpoint with a context that is not the
//	             function's, the lease's or the request's
//	release      a lease that is not released on some path, or is dropped
//	mark         an effect before MarkEffect, or after its error
//	key          a key of several texts without core.Key, one resource under two forms, a fencing
//	             token in an idempotency key, one DownstreamKey for two calls, a key as a Name
//	transaction  a lock that is taken inside a transaction, a transaction of the engine that the
//	             handler ends
//	close        a store that is closed before its locker or engine
//	handler      a value that is read from another place than the rule's template names, a time
//	             limit inside an idempotent endpoint
//
// A comment silences its line: //nolint:interlockvet // the reason.
package analyzer

import (
	"go/ast"
	"go/token"
	"go/types"
	"strings"

	"golang.org/x/tools/go/analysis"
)

// Analyzer has all rules. Its flag tests includes the files of tests.
var Analyzer = &analysis.Analyzer{
	Name: "interlockvet",
	Doc:  "report code that breaks a rule of Interlock that the compiler cannot check",
	URL:  "https://pkg.go.dev/github.com/interlock-go/interlock/cmd/interlockvet/analyzer",
	Run:  run,
}

var withTests bool

func init() {
	Analyzer.Flags.BoolVar(&withTests, "tests", false, "report in the files and packages of tests, too")
}

// checker is the state of a run over one package.
type checker struct {
	pass     *analysis.Pass
	info     *types.Info
	files    []*ast.File // without tests
	assigned map[types.Object][]ast.Expr
	funcs    map[*types.Func]*ast.FuncDecl
	bodies   []function
	exits    map[*types.Func]bool // functions of the package that never return
	fallback bool                 // an engine of gin passes on the values of the request
	silent   map[string]map[int]bool
	reported map[token.Pos]bool
}

// function is a function of the package, declared or literal.
type function struct {
	kind *ast.FuncType
	body *ast.BlockStmt
}

func run(pass *analysis.Pass) (any, error) {
	c := &checker{
		pass: pass, info: pass.TypesInfo,
		assigned: map[types.Object][]ast.Expr{}, funcs: map[*types.Func]*ast.FuncDecl{}, exits: map[*types.Func]bool{},
		silent: map[string]map[int]bool{}, reported: map[token.Pos]bool{},
	}
	uses := isInterlock(pass.Pkg.Path())
	forTests := false
	for _, imported := range pass.Pkg.Imports() {
		uses = uses || isInterlock(imported.Path())
		forTests = forTests || imported.Path() == "testing"
	}
	if !uses || forTests && !withTests {
		return nil, nil
	}
	for _, file := range pass.Files {
		if name := pass.Fset.Position(file.Package).Filename; withTests || !strings.HasSuffix(name, "_test.go") {
			c.files = append(c.files, file)
		}
	}
	c.index()
	for _, f := range c.bodies {
		c.releases(f)
		c.afterLock(f)
		c.marks(f)
		c.transactions(f)
		c.closes(f)
		c.downstreamKeys(f)
	}
	for _, file := range c.files {
		c.sections(file)
		c.requestContexts(file)
		c.keys(file)
		c.names(file)
		c.engineTransactions(file)
	}
	c.forms()
	c.handlers()
	return nil, nil
}

// index collects functions, the assignments of each variable and field, and the silenced lines.
func (c *checker) index() {
	for _, file := range c.files {
		for _, group := range file.Comments {
			for _, comment := range group.List {
				if strings.Contains(comment.Text, "nolint:interlockvet") {
					at := c.pass.Fset.Position(comment.Pos())
					if c.silent[at.Filename] == nil {
						c.silent[at.Filename] = map[int]bool{}
					}
					c.silent[at.Filename][at.Line] = true
				}
			}
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				if f, ok := c.info.Defs[n.Name].(*types.Func); ok && n.Body != nil {
					c.funcs[f] = n
					c.bodies = append(c.bodies, function{n.Type, n.Body})
				}
			case *ast.FuncLit:
				c.bodies = append(c.bodies, function{n.Type, n.Body})
			case *ast.Field: // a parameter or result; a field of a struct has no value here
				for _, id := range n.Names {
					if v, ok := c.info.Defs[id].(*types.Var); ok && !v.IsField() {
						c.assign([]ast.Expr{id}, []ast.Expr{nil})
					}
				}
			case *ast.AssignStmt:
				c.assign(n.Lhs, n.Rhs)
			case *ast.ValueSpec:
				names := make([]ast.Expr, len(n.Names))
				for i, name := range n.Names {
					names[i] = name
				}
				if len(n.Values) > 0 {
					c.assign(names, n.Values)
				}
			case *ast.RangeStmt:
				c.assign([]ast.Expr{n.Key, n.Value}, []ast.Expr{nil, nil})
			case *ast.UnaryExpr:
				if n.Op == token.AND {
					c.assign([]ast.Expr{n.X}, []ast.Expr{nil}) // anything may be written to it
				}
			case *ast.KeyValueExpr:
				if field, ok := n.Key.(*ast.Ident); ok {
					if v, ok := c.info.Uses[field].(*types.Var); ok && v.IsField() {
						c.assigned[v] = append(c.assigned[v], n.Value)
					}
				}
			}
			return true
		})
	}
	for f, decl := range c.funcs {
		if list := decl.Body.List; len(list) > 0 {
			if last, ok := list[len(list)-1].(*ast.ExprStmt); ok {
				if call, ok := last.X.(*ast.CallExpr); ok && !c.mayReturn(call) {
					c.exits[f] = true
				}
			}
		}
	}
}

// assign notes the values of variables. The first result of a call stands for the call.
func (c *checker) assign(left, right []ast.Expr) {
	for i, l := range left {
		object := c.object(l)
		if object == nil {
			continue
		}
		var value ast.Expr
		switch {
		case len(left) == len(right):
			value = right[i]
		case i == 0 && len(right) == 1:
			value = right[0]
		}
		c.assigned[object] = append(c.assigned[object], value)
	}
}

// report reports one fault for a place.
func (c *checker) report(at ast.Node, rule, format string, args ...any) {
	pos := c.pass.Fset.Position(at.Pos())
	if c.reported[at.Pos()] || c.silent[pos.Filename][pos.Line] {
		return
	}
	c.reported[at.Pos()] = true
	c.pass.Report(analysis.Diagnostic{Pos: at.Pos(), End: at.End(), Category: rule, Message: rule + ": " + sprintf(format, args...)})
}
