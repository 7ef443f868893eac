package analyzer

import (
	"go/ast"
	"go/types"
	"regexp"
	"slices"
	"strings"
)

// cleanup names functions that end or undo something, for which an ended context would be wrong.
var cleanup = regexp.MustCompile(`(?i)release|rollback|close|shutdown|stop|unlock|clean|abort|undo|revert|compensat|^log`)

// work reports whether a call does work that should end with its context, or stay undone without it.
func (c *checker) work(call *ast.CallExpr) bool {
	fun := unparen(call.Fun)
	if tv := c.info.Types[fun]; tv.IsType() || tv.IsBuiltin() {
		return false
	}
	called := ""
	switch fun := fun.(type) {
	case *ast.Ident:
		called = fun.Name
	case *ast.SelectorExpr:
		called = fun.Sel.Name
	}
	_, n := c.callee(call)
	switch {
	case cleanup.MatchString(called):
		return false
	case n.pkg == "context":
		return strings.HasPrefix(n.name, "With") && n.name != "WithoutCancel"
	case slices.Contains([]string{"log/slog", "log", "fmt", "testing", "os/signal", "runtime/pprof", "runtime/trace"}, n.pkg):
		return false
	}
	return true
}

// onlyCleansUp reports whether a call makes a context that is used in a scope for cleaning up alone.
func (c *checker) onlyCleansUp(call *ast.CallExpr, above []ast.Node, scope ast.Node) bool {
	if _, n := c.callee(call); n.pkg != "context" || len(above) == 0 {
		return false
	}
	made, ok := above[len(above)-1].(*ast.AssignStmt)
	if !ok {
		return false
	}
	object := c.object(made.Lhs[0])
	if object == nil {
		return false
	}
	only := true
	callsIn(scope, func(call *ast.CallExpr, above []ast.Node) {
		for _, arg := range call.Args {
			if c.object(arg) == object && c.work(call) && !has[*ast.DeferStmt](above) {
				only = false
			}
		}
	})
	return only
}

// apart reports whether a node runs later, or with another context: in a goroutine, at the end of
// the function, in a function that has a context or request as a parameter.
func (c *checker) apart(above []ast.Node) bool {
	for i, n := range above {
		switch n := n.(type) {
		case *ast.GoStmt, *ast.DeferStmt:
			return true
		case *ast.CallExpr:
			if _, called := c.callee(n); called.name == "AfterFunc" {
				return true
			}
		case *ast.FuncLit:
			if i == 0 {
				continue
			}
			if _, ok := c.parameter(n.Type, isSource); ok {
				return true
			}
		}
	}
	return false
}

// isSource reports whether a function with a parameter of the type has a context that is given to it.
func isSource(t types.Type) bool {
	return isContext(t) || isRequest(t) || isGinContext(t) || isEchoContext(t)
}

// sections looks at functions that are called with a context of Interlock, as by Locker.Do.
func (c *checker) sections(file *ast.File) {
	callsIn(file, func(call *ast.CallExpr, _ []ast.Node) {
		f, n := c.callee(call)
		if !isPublic(f) || len(call.Args) < 2 || !isContext(c.info.TypeOf(call.Args[0])) && !isGinContext(c.info.TypeOf(call.Args[0])) {
			return
		}
		for _, arg := range call.Args[1:] {
			kind, body, lit := c.functionOf(arg)
			if body == nil {
				continue
			}
			own, ok := c.parameter(kind, isContext)
			if ok {
				c.section(n.name, body, own, lit)
			}
		}
	})
}

// functionOf returns a function that an expression names, and the literal if it is one.
func (c *checker) functionOf(e ast.Expr) (*ast.FuncType, *ast.BlockStmt, *ast.FuncLit) {
	switch e := c.resolve(e).(type) {
	case *ast.FuncLit:
		return e.Type, e.Body, e
	case *ast.Ident, *ast.SelectorExpr:
		if f, ok := c.object(e).(*types.Func); ok {
			if decl := c.funcs[f]; decl != nil {
				return decl.Type, decl.Body, nil
			}
		}
	}
	return nil, nil, nil
}

// section reports work in a function under a lock with another context than the function's.
func (c *checker) section(of string, body *ast.BlockStmt, own types.Object, lit *ast.FuncLit) {
	use := "pass the function's own context"
	if own == nil || own.Name() == "_" {
		use = "name the function's context parameter and pass it"
	} else {
		use += " " + own.Name()
	}
	callsIn(body, func(call *ast.CallExpr, above []ast.Node) {
		if c.apart(above) || !c.work(call) || c.onlyCleansUp(call, above, body) {
			return
		}
		for _, arg := range call.Args {
			if c.isBackground(arg) {
				c.report(arg, "context", "%s in the function that %s calls goes on when its lock or claim is lost; %s", c.source(arg), of, use)
			}
			v, ok := c.object(arg).(*types.Var)
			if !ok || lit == nil || !isContext(v.Type()) || v.IsField() {
				continue
			}
			if _, ident := unparen(arg).(*ast.Ident); !ident || lit.Pos() <= v.Pos() && v.Pos() < lit.End() {
				continue
			}
			if len(c.assigned[v]) > 1 && c.assignedIn(v, body) {
				continue
			}
			c.report(arg, "context", "%s is the context outside of the function that %s calls: it does not end when the lock or claim is lost; %s", v.Name(), of, use)
		}
	})
}

// assignedIn reports whether a variable is assigned in a body.
func (c *checker) assignedIn(v types.Object, body ast.Node) bool {
	found := false
	ast.Inspect(body, func(n ast.Node) bool {
		if a, ok := n.(*ast.AssignStmt); ok {
			for _, l := range a.Lhs {
				found = found || c.object(l) == v
			}
		}
		return !found
	})
	return found
}

// keeps are the calls of Interlock that use only the values of their context, or end with the process.
var keeps = []string{"Release", "Close", "HandOver", "Shutdown", "Check"}

// requestContexts reports calls of Interlock in a handler with a context that is not the request's.
func (c *checker) requestContexts(file *ast.File) {
	callsIn(file, func(call *ast.CallExpr, above []ast.Node) {
		f, n := c.callee(call)
		if !isPublic(f) || len(call.Args) == 0 {
			return
		}
		params := f.Signature().Params()
		if params.Len() == 0 || !isContext(params.At(0).Type()) {
			return
		}
		arg := call.Args[0]
		if isGinContext(c.info.TypeOf(arg)) && !c.passesOn() {
			c.report(arg, "context", "a *gin.Context hides the lock of the request and does not end; pass %s.Request.Context() to %s", c.source(arg), n.name)
			return
		}
		if !c.isBackground(arg) || slices.Contains(keeps, n.name) {
			return
		}
		for i := len(above) - 1; i >= 0; i-- {
			var kind *ast.FuncType
			switch at := above[i].(type) {
			case *ast.GoStmt, *ast.DeferStmt:
				return
			case *ast.FuncLit:
				kind = at.Type
			case *ast.FuncDecl:
				kind = at.Type
			default:
				continue
			}
			own, ok := c.parameter(kind, isSource)
			if !ok || own == nil || own.Name() == "_" {
				continue
			}
			c.report(arg, "context", "%s is not the context of the caller: %s cannot see its locks, its claim or its end; pass %s", c.source(arg), n.name, contextOf(own))
			return
		}
	})
}

// contextOf returns the expression of the context that a parameter has.
func contextOf(parameter types.Object) string {
	switch t := parameter.Type(); {
	case isRequest(t):
		return parameter.Name() + ".Context()"
	case isGinContext(t):
		return parameter.Name() + ".Request.Context()"
	case isEchoContext(t):
		return parameter.Name() + ".Request().Context()"
	}
	return parameter.Name()
}

// passesOn reports whether an engine of gin has ContextWithFallback on, in this package.
func (c *checker) passesOn() bool {
	for object := range c.assigned {
		if v, ok := object.(*types.Var); ok && v.IsField() && v.Name() == "ContextWithFallback" {
			return true
		}
	}
	return false
}

// afterLock reports work between Lock and Release with the context that was given to Lock.
func (c *checker) afterLock(f function) {
	eachList(f.body, func(list []ast.Stmt) {
		for i, stmt := range list {
			made, ok := stmt.(*ast.AssignStmt)
			if !ok || len(made.Lhs) != 2 || len(made.Rhs) != 1 {
				continue
			}
			call, ok := unparen(made.Rhs[0]).(*ast.CallExpr)
			if !ok || !c.isAcquire(call) || len(call.Args) == 0 {
				continue
			}
			lease, err := c.object(made.Lhs[0]), c.object(made.Lhs[1])
			if lease == nil {
				continue
			}
			if escaped, _ := c.escapes(f.body, lease); escaped || c.guarded(f.body, lease) {
				continue
			}
			outer, _ := c.object(call.Args[0]).(*types.Var)
			if outer != nil && (!isContext(outer.Type()) || c.assignedAfter(outer, made, f.body)) {
				continue
			}
			for _, stmt := range list[i+1:] {
				if c.mayRelease(stmt, lease) {
					break
				}
				c.under(stmt, f.body, outer, lease, err)
			}
		}
	})
}

// guarded reports whether a function uses the context or token of a lease, asks the store, or gives
// the lease to a function of Interlock, which does. Its author has thought of a lost lock.
func (c *checker) guarded(body ast.Node, lease types.Object) bool {
	found := false
	callsIn(body, func(call *ast.CallExpr, _ []ast.Node) {
		sel, ok := unparen(call.Fun).(*ast.SelectorExpr)
		found = found || ok && c.object(sel.X) == lease && slices.Contains([]string{"Context", "Token", "TokenFor", "Check"}, sel.Sel.Name)
		for _, arg := range call.Args {
			found = found || c.object(arg) == lease
		}
	})
	return found
}

// protects reports whether a call of Interlock depends on the locks that its context has. TryLock
// with another context is how a program asks whether a lock is held.
func protects(n name) bool {
	if strings.HasPrefix(n.name, "Try") {
		return false
	}
	return keyArgument(n) >= 0 || n.pkg == "core" && (n.name == "Commit" || n.name == "Check") || strings.HasPrefix(n.pkg, "core/idempotency")
}

// assignedAfter reports whether a variable gets another value after a statement.
func (c *checker) assignedAfter(v types.Object, after, body ast.Node) bool {
	found := false
	ast.Inspect(body, func(n ast.Node) bool {
		if a, ok := n.(*ast.AssignStmt); ok && before(after, a) {
			for _, l := range a.Lhs {
				found = found || c.object(l) == v
			}
		}
		return !found
	})
	return found
}

// under reports work below a statement with the outer context.
func (c *checker) under(stmt ast.Stmt, scope ast.Node, outer *types.Var, lease, err types.Object) {
	callsIn(stmt, func(call *ast.CallExpr, above []ast.Node) {
		if c.apart(above) || !c.work(call) || c.mentions(call, lease) || c.afterRelease(call, above, lease) || c.onlyCleansUp(call, above, scope) {
			return
		}
		if f, n := c.callee(call); isPublic(f) && !protects(n) {
			return
		}
		for i, n := range above {
			switch n := n.(type) {
			case *ast.IfStmt:
				if c.mentions(n.Cond, err) && i+1 < len(above) && above[i+1] == n.Body {
					return
				}
			case *ast.SwitchStmt:
				if c.mentions(n.Tag, err) {
					return
				}
			case *ast.CaseClause:
				for _, e := range n.List {
					if c.mentions(e, err) {
						return
					}
				}
			}
		}
		for _, arg := range call.Args {
			if id, ok := unparen(arg).(*ast.Ident); ok && outer != nil && c.info.Uses[id] == outer {
				c.report(arg, "context", "%s does not end when the lock is lost; work under the lock with %s.Context()", id.Name, lease.Name())
			} else if c.isBackground(arg) {
				c.report(arg, "context", "%s goes on when the lock is lost; work under the lock with %s.Context()", c.source(arg), lease.Name())
			}
		}
	})
}

// afterRelease reports whether a node comes after a release in the same list of statements, or in one around it.
func (c *checker) afterRelease(call ast.Node, above []ast.Node, lease types.Object) bool {
	for _, n := range above {
		for _, stmt := range listOf(n) {
			if stmt.End() <= call.Pos() && c.mayRelease(stmt, lease) {
				return true
			}
		}
	}
	return false
}

// eachList calls f for each list of statements in a function, not in functions inside it.
func eachList(body *ast.BlockStmt, f func(list []ast.Stmt)) {
	ast.Inspect(body, func(n ast.Node) bool {
		if _, ok := n.(*ast.FuncLit); ok {
			return false
		}
		if list := listOf(n); list != nil {
			f(list)
		}
		return true
	})
}

func listOf(n ast.Node) []ast.Stmt {
	switch n := n.(type) {
	case *ast.BlockStmt:
		return n.List
	case *ast.CaseClause:
		return n.Body
	case *ast.CommClause:
		return n.Body
	}
	return nil
}
