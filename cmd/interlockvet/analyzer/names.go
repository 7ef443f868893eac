package analyzer

import (
	"fmt"
	"go/ast"
	"go/constant"
	"go/types"
	"slices"
	"strings"
)

const module = "github.com/interlock-go/interlock"

func sprintf(format string, args ...any) string { return fmt.Sprintf(format, args...) }

func isInterlock(path string) bool {
	return path == module || strings.HasPrefix(path, module+"/")
}

// isPublic reports whether a function is part of Interlock's API.
func isPublic(f *types.Func) bool {
	return f != nil && f.Exported() && isInterlock(f.Pkg().Path()) && !strings.Contains(f.Pkg().Path(), "/internal/")
}

func unparen(e ast.Expr) ast.Expr {
	if e == nil {
		return nil
	}
	return ast.Unparen(e)
}

// object returns the variable, field or function that an expression names.
func (c *checker) object(e ast.Expr) types.Object {
	switch e := unparen(e).(type) {
	case *ast.Ident:
		return c.info.ObjectOf(e)
	case *ast.SelectorExpr:
		return c.info.ObjectOf(e.Sel)
	}
	return nil
}

// resolve follows a variable or field to its only assignment.
func (c *checker) resolve(e ast.Expr) ast.Expr {
	for range 8 {
		e = unparen(e)
		v, ok := c.object(e).(*types.Var)
		if !ok || len(c.assigned[v]) != 1 || c.assigned[v][0] == nil {
			return e
		}
		e = c.assigned[v][0]
	}
	return e
}

// name is a function or method: the path of its package in the module, its receiver, its name.
type name struct{ pkg, recv, name string }

// callee returns the function that a call names statically.
func (c *checker) callee(call *ast.CallExpr) (*types.Func, name) {
	fun := unparen(call.Fun)
	switch index := fun.(type) { // an instance of a generic function
	case *ast.IndexExpr:
		fun = index.X
	case *ast.IndexListExpr:
		fun = index.X
	}
	f, ok := c.object(fun).(*types.Func)
	if !ok || f.Pkg() == nil {
		return nil, name{}
	}
	f = f.Origin()
	n := name{pkg: strings.TrimPrefix(f.Pkg().Path(), module+"/"), name: f.Name()}
	if recv := f.Signature().Recv(); recv != nil {
		n.recv = typeName(recv.Type())
	}
	return f, n
}

// typeName returns the name of a named type, or of the type that it points to.
func typeName(t types.Type) string {
	if p, ok := types.Unalias(t).(*types.Pointer); ok {
		t = p.Elem()
	}
	if named, ok := types.Unalias(t).(*types.Named); ok {
		return named.Obj().Name()
	}
	return ""
}

// isType reports whether t, or the type that it points to, is a named type.
func isType(t types.Type, pkg, name string) bool {
	if t == nil {
		return false
	}
	if p, ok := types.Unalias(t).(*types.Pointer); ok {
		t = p.Elem()
	}
	named, ok := types.Unalias(t).(*types.Named)
	return ok && named.Obj().Pkg() != nil && named.Obj().Name() == name && named.Obj().Pkg().Path() == pkg
}

func isContext(t types.Type) bool    { return isType(t, "context", "Context") }
func isGinContext(t types.Type) bool { return isType(t, "github.com/gin-gonic/gin", "Context") }
func isRequest(t types.Type) bool    { return isType(t, "net/http", "Request") }
func isLease(t types.Type) bool      { return isType(t, module+"/core", "Lease") }
func isEchoContext(t types.Type) bool {
	return typeName(t) == "Context" && strings.HasPrefix(pathOf(t), "github.com/labstack/echo/")
}

func pathOf(t types.Type) string {
	if p, ok := types.Unalias(t).(*types.Pointer); ok {
		t = p.Elem()
	}
	if named, ok := types.Unalias(t).(*types.Named); ok && named.Obj().Pkg() != nil {
		return named.Obj().Pkg().Path()
	}
	return ""
}

// acquires are the methods of Locker that return a lease.
var acquires = []string{"Lock", "TryLock", "LockAll", "LockShared", "TryLockShared", "Permit", "TryPermit", "TakeOver"}

// isAcquire reports whether a call takes a lock and returns its lease.
func (c *checker) isAcquire(call *ast.CallExpr) bool {
	_, n := c.callee(call)
	return n.pkg == "core" && n.recv == "Locker" && slices.Contains(acquires, n.name)
}

// text returns the value of a constant text.
func (c *checker) text(e ast.Expr) (string, bool) {
	if e == nil {
		return "", false
	}
	if tv := c.info.Types[e]; tv.Value != nil && tv.Value.Kind() == constant.String {
		return constant.StringVal(tv.Value), true
	}
	return "", false
}

// mentions reports whether an identifier below a node names an object.
func (c *checker) mentions(n ast.Node, object types.Object) bool {
	if n == nil || object == nil {
		return false
	}
	found := false
	ast.Inspect(n, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok && c.info.ObjectOf(id) == object {
			found = true
		}
		return !found
	})
	return found
}

// callsIn calls f for each call below a node, with the nodes above it.
func callsIn(n ast.Node, f func(call *ast.CallExpr, above []ast.Node)) {
	ast.PreorderStack(n, nil, func(n ast.Node, above []ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			f(call, above)
		}
		return true
	})
}

// has reports whether a node is a T.
func has[T ast.Node](nodes []ast.Node) bool {
	return slices.ContainsFunc(nodes, func(n ast.Node) bool { _, ok := n.(T); return ok })
}

// mayReturn reports whether a call can return.
func (c *checker) mayReturn(call *ast.CallExpr) bool {
	if b, ok := c.object(call.Fun).(*types.Builtin); ok {
		return b.Name() != "panic"
	}
	f, n := c.callee(call)
	switch {
	case f == nil:
		return true
	case n.pkg == "os" && n.name == "Exit", n.pkg == "runtime" && n.name == "Goexit":
		return false
	case n.pkg == "log" && (strings.HasPrefix(n.name, "Fatal") || strings.HasPrefix(n.name, "Panic")):
		return false
	case n.pkg == "testing" && (strings.HasPrefix(n.name, "Fatal") || strings.HasPrefix(n.name, "Skip") || n.name == "FailNow"):
		return false
	}
	return !c.exits[f]
}

// source returns an expression as it is written.
func (c *checker) source(e ast.Expr) string { return types.ExprString(e) }

// before reports whether a node is written before another.
func before(a, b ast.Node) bool { return a.Pos() < b.Pos() }

// isBackground reports whether an expression is context.Background() or context.TODO().
func (c *checker) isBackground(e ast.Expr) bool {
	call, ok := unparen(e).(*ast.CallExpr)
	if !ok {
		return false
	}
	_, n := c.callee(call)
	return n.pkg == "context" && (n.name == "Background" || n.name == "TODO")
}

// parameter returns the first parameter of a function with a type, and whether there is one. The
// parameter is nil if it has no name.
func (c *checker) parameter(kind *ast.FuncType, fits func(types.Type) bool) (types.Object, bool) {
	for _, field := range kind.Params.List {
		if !fits(c.info.TypeOf(field.Type)) {
			continue
		}
		for _, id := range field.Names {
			return c.info.Defs[id], true
		}
		return nil, true
	}
	return nil, false
}
