package analyzer

import (
	"go/ast"
	"go/types"
)

// closing is a call that closes a part of a service.
type closing struct {
	call     *ast.CallExpr
	what     string
	rank     int // 0 server, 1 engine, 2 locker, 3 store, 4 client of the store
	object   types.Object
	deferred *ast.DeferStmt
}

// closed returns the part that a call closes.
func (c *checker) closed(call *ast.CallExpr) (closing, bool) {
	sel, ok := unparen(call.Fun).(*ast.SelectorExpr)
	if !ok {
		return closing{}, false
	}
	f, n := c.callee(call)
	if f == nil || f.Signature().Recv() == nil {
		return closing{}, false
	}
	rank := -1
	switch t := c.info.TypeOf(sel.X); {
	case n.pkg == "net/http" && n.recv == "Server" && n.name == "Shutdown":
		rank = 0
	case n.name != "Close":
	case n.pkg == "core/idempotency" && n.recv == "Engine":
		rank = 1
	case n.pkg == "core" && n.recv == "Locker":
		rank = 2
	case isInterlock(pathOf(t)) && typeName(t) == "Store":
		rank = 3
	case isType(t, "database/sql", "DB"), isRedis(t), isType(t, "github.com/jackc/pgx/v5/pgxpool", "Pool"):
		rank = 4
	}
	object := c.object(sel.X)
	if rank < 0 || object == nil {
		return closing{}, false
	}
	return closing{call: call, what: c.source(call.Fun), rank: rank, object: object}, true
}

func isRedis(t types.Type) bool {
	switch pathOf(t) {
	case "github.com/redis/go-redis/v9":
		n := typeName(t)
		return n == "Client" || n == "UniversalClient" || n == "ClusterClient"
	}
	return false
}

// closes reports closing in another order than server, engine, locker, store, client of the store.
func (c *checker) closes(f function) {
	var all []closing
	ast.PreorderStack(f.body, nil, func(n ast.Node, above []ast.Node) bool {
		if lit, ok := n.(*ast.FuncLit); ok && lit.Body != f.body && !isDeferred(lit, above) {
			return false
		}
		if call, ok := n.(*ast.CallExpr); ok && !has[*ast.GoStmt](above) {
			if closing, ok := c.closed(call); ok {
				for _, n := range above {
					if later, ok := n.(*ast.DeferStmt); ok {
						closing.deferred = later
					}
				}
				all = append(all, closing)
			}
		}
		return true
	})
	if len(all) < 2 {
		return
	}
	g := c.graph(f)
	for _, first := range all {
		for _, second := range all {
			if first.rank > second.rank && c.related(first, second, all) && runsBefore(first, second, func(a, b closing) bool {
				at, ok := placeOf(g, a.call)
				return ok && reaches(at, b.call, nil)
			}) {
				at := first
				if first.deferred != nil && first.deferred != second.deferred {
					at = second
				}
				c.report(at.call, "close", "%s runs before %s; close in the order server, engine, locker, store, client of the store%s", first.what, second.what, hint(first, second))
			}
		}
	}
}

func hint(first, second closing) string {
	if first.deferred != nil && second.deferred != nil && first.deferred != second.deferred {
		return ": the last defer runs first"
	}
	return ""
}

// isDeferred reports whether a literal is called by a defer statement.
func isDeferred(lit *ast.FuncLit, above []ast.Node) bool {
	if len(above) < 2 || !isCallOf(above[len(above)-1], lit) {
		return false
	}
	_, ok := above[len(above)-2].(*ast.DeferStmt)
	return ok
}

// runsBefore reports whether the first call runs before the second on a path with both.
func runsBefore(first, second closing, reaches func(a, b closing) bool) bool {
	switch {
	case first.deferred != nil && first.deferred == second.deferred:
		return before(first.call, second.call)
	case first.deferred != nil && second.deferred == nil:
		return false
	case second.deferred != nil:
		return before(second.call, first.call) && reaches(second, first)
	}
	return before(first.call, second.call) && reaches(first, second)
}

// related reports whether two parts belong together: the function has a single part of each kind, or
// one was made of the other.
func (c *checker) related(a, b closing, all []closing) bool {
	one := true
	for _, other := range all {
		if other.rank == a.rank && other.object != a.object || other.rank == b.rank && other.object != b.object {
			one = false
		}
	}
	if a.rank == 4 || !one {
		return c.madeOf(b.object, a.object, 4)
	}
	return one
}

// madeOf reports whether the only value of a variable was made by a call with another variable.
func (c *checker) madeOf(object, of types.Object, deep int) bool {
	values := c.assigned[object]
	if len(values) != 1 || values[0] == nil || deep == 0 {
		return false
	}
	if c.mentions(values[0], of) {
		return true
	}
	found := false
	ast.Inspect(values[0], func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok && !found {
			if v, ok := c.info.Uses[id].(*types.Var); ok && v != object {
				found = c.madeOf(v, of, deep-1)
			}
		}
		return !found
	})
	return found
}
