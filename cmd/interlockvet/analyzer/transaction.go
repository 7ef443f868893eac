package analyzer

import (
	"go/ast"
	"go/types"
	"regexp"
	"slices"
	"strings"
)

// takesLock reports whether a call takes a lock and waits for it.
func (c *checker) takesLock(call *ast.CallExpr) (string, bool) {
	_, n := c.callee(call)
	if n.pkg != "core" || strings.HasPrefix(n.name, "Try") {
		return "", false
	}
	ok := n.recv == "Locker" && (n.name == "Do" || slices.Contains(acquires, n.name)) || n.recv == "" && n.name == "Lead"
	return n.name, ok
}

const inTransaction = "%s inside a transaction waits with a connection and row locks in its hand, and reads what was there before the lock; take the lock first, and begin the transaction under it"

// transactions reports locks that are taken between the begin and the end of a transaction.
func (c *checker) transactions(f function) {
	begun := map[types.Object]ast.Node{}
	ast.Inspect(f.body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			return n.Body == f.body
		case *ast.AssignStmt:
			if len(n.Lhs) == 2 && len(n.Rhs) == 1 {
				_, called := callOf(n.Rhs[0], c)
				if tx := c.object(n.Lhs[0]); tx != nil && isTransaction(tx.Type()) && strings.HasPrefix(called.name, "Begin") {
					begun[tx] = n
				}
			}
		}
		return true
	})
	for tx, begin := range begun {
		var locks, ends []*ast.CallExpr
		ast.PreorderStack(f.body, nil, func(n ast.Node, above []ast.Node) bool {
			if lit, ok := n.(*ast.FuncLit); ok && lit.Body != f.body {
				return false
			}
			call, ok := n.(*ast.CallExpr)
			if !ok || has[*ast.DeferStmt](above) || has[*ast.GoStmt](above) {
				return true
			}
			if _, takes := c.takesLock(call); takes {
				locks = append(locks, call)
			}
			if sel, ok := unparen(call.Fun).(*ast.SelectorExpr); ok && c.object(sel.X) == tx && sel.Sel.Name == "Commit" {
				ends = append(ends, call)
			}
			for _, arg := range call.Args { // core.Commit(ctx, tx.Commit)
				if sel, ok := unparen(arg).(*ast.SelectorExpr); ok && c.object(sel.X) == tx && sel.Sel.Name == "Commit" {
					ends = append(ends, call)
				}
			}
			return true
		})
		if len(locks) == 0 || len(ends) == 0 {
			continue
		}
		g := c.graph(f)
		start, ok := placeOf(g, begin)
		if !ok {
			continue
		}
		start.index++
		isEnd := func(n ast.Node) bool {
			return slices.ContainsFunc(ends, func(e *ast.CallExpr) bool { return n.Pos() <= e.Pos() && e.End() <= n.End() })
		}
		for _, lock := range locks {
			at, ok := placeOf(g, lock)
			if ok && reaches(start, lock, isEnd) && slices.ContainsFunc(ends, func(e *ast.CallExpr) bool { return reaches(at, e, nil) }) {
				name, _ := c.takesLock(lock)
				c.report(lock, "transaction", inTransaction, name)
			}
		}
	}
}

func callOf(e ast.Expr, c *checker) (*ast.CallExpr, name) {
	call, ok := unparen(e).(*ast.CallExpr)
	if !ok {
		return nil, name{}
	}
	_, n := c.callee(call)
	return call, n
}

var ending = regexp.MustCompile(`(?i)^\s*(commit|rollback|abort|end|begin|start transaction|reset all|discard all)\b`)

// engineTransactions reports locks in functions that are called with a transaction, and transactions
// of the engine that a handler ends.
func (c *checker) engineTransactions(file *ast.File) {
	callsIn(file, func(call *ast.CallExpr, _ []ast.Node) {
		f, n := c.callee(call)
		if sel, ok := unparen(call.Fun).(*ast.SelectorExpr); ok && n.pkg == "database/sql" && n.recv == "Tx" && (n.name == "Commit" || n.name == "Rollback") {
			if made, of := callOf(c.resolve(sel.X), c); made != nil && of.pkg == "core/pgstore" && of.recv == "Transaction" && of.name == "SQL" {
				c.report(call, "transaction", "the engine ends the transaction of the request; a handler that ends it leaves the outcome unknown: return, and let the answer decide")
			}
		}
		if n.pkg == "core/pgstore" && n.recv == "Transaction" && len(call.Args) > 1 {
			if text, ok := c.text(call.Args[1]); ok && ending.MatchString(text) {
				c.report(call, "transaction", "the engine ends the transaction of the request; a handler that ends it leaves the outcome unknown: return, and let the answer decide")
			}
		}
		if f == nil {
			return
		}
		for _, arg := range call.Args {
			lit, ok := unparen(arg).(*ast.FuncLit)
			if !ok {
				continue
			}
			if _, gets := c.parameter(lit.Type, func(t types.Type) bool {
				return isTransaction(t) || isType(t, module+"/core/pgstore", "Transaction")
			}); !gets {
				continue
			}
			callsIn(lit.Body, func(inner *ast.CallExpr, above []ast.Node) {
				if name, takes := c.takesLock(inner); takes && !has[*ast.GoStmt](above) && !has[*ast.FuncLit](above) {
					c.report(inner, "transaction", inTransaction, name)
				}
			})
		}
	})
}
