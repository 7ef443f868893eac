package analyzer

import (
	"go/ast"
	"go/token"
	"go/types"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/tools/go/cfg"
)

// marks reports effects before MarkEffect, and after an error of it.
func (c *checker) marks(f function) {
	var marks []*ast.CallExpr
	effects := map[*ast.CallExpr]string{}
	keyed := false // the called service deduplicates
	ast.PreorderStack(f.body, nil, func(n ast.Node, above []ast.Node) bool {
		if lit, ok := n.(*ast.FuncLit); ok && lit.Body != f.body {
			return false
		}
		if text, ok := n.(*ast.BasicLit); ok && strings.Contains(strings.ToLower(text.Value), "idempotency-key") {
			keyed = true
		}
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		_, called := c.callee(call)
		switch {
		case called.pkg == "core/idempotency" && called.name == "MarkEffect":
			marks = append(marks, call)
			if dropped(above) {
				c.report(call, "mark", "the error of MarkEffect says that another attempt may be under way; return it, and answer 503")
			}
		case called.pkg == "core/idempotency" && (called.name == "DownstreamKey" || called.name == "CallKey"):
			keyed = true
		case has[*ast.GoStmt](above), has[*ast.DeferStmt](above):
		default:
			if effect := c.effect(call, called); effect != "" {
				effects[call] = effect
			}
		}
		return true
	})
	if len(marks) == 0 {
		return
	}
	g := c.graph(f)
	isMark := func(n ast.Node) bool {
		return slices.ContainsFunc(marks, func(m *ast.CallExpr) bool { return n.Pos() <= m.Pos() && m.End() <= n.End() })
	}
	if !keyed {
		for effect, is := range effects {
			if !reaches(place{g.Blocks[0], 0}, effect, isMark) {
				continue
			}
			at, ok := placeOf(g, effect)
			if ok && slices.ContainsFunc(marks, func(m *ast.CallExpr) bool { return !before(m, effect) && reaches(at, m, nil) }) {
				c.report(effect, "mark", "%s comes before MarkEffect: after a crash in between the request is carried out again; call MarkEffect first", is)
			}
		}
	}
	c.goesOn(f, g)
}

// dropped reports whether a call is a statement, or its result is assigned to a blank.
func dropped(above []ast.Node) bool {
	switch parent := above[len(above)-1].(type) {
	case *ast.ExprStmt, *ast.GoStmt, *ast.DeferStmt:
		return true
	case *ast.AssignStmt:
		id, ok := parent.Lhs[0].(*ast.Ident)
		return ok && id.Name == "_"
	}
	return false
}

// goesOn reports code after MarkEffect that control also reaches from the branch of its error.
func (c *checker) goesOn(f function, g *cfg.CFG) {
	eachList(f.body, func(list []ast.Stmt) {
		for i, stmt := range list {
			branch, ok := stmt.(*ast.IfStmt)
			if !ok {
				continue
			}
			cond, ok := branch.Cond.(*ast.BinaryExpr)
			if !ok || cond.Op != token.NEQ || !c.info.Types[cond.Y].IsNil() {
				continue
			}
			made, _ := branch.Init.(*ast.AssignStmt)
			if made == nil && i > 0 {
				made, _ = list[i-1].(*ast.AssignStmt)
			}
			if made == nil || len(made.Rhs) != 1 || c.object(made.Lhs[0]) != c.object(cond.X) {
				continue
			}
			call, ok := unparen(made.Rhs[0]).(*ast.CallExpr)
			if !ok {
				continue
			}
			if _, n := c.callee(call); n.pkg != "core/idempotency" || n.name != "MarkEffect" {
				continue
			}
			if branch.Else != nil || len(branch.Body.List) == 0 || i+1 == len(list) || !has[*ast.CallExpr](nodesIn(list[i+1])) ||
				has[*ast.AssignStmt](nodesIn(branch.Body)) { // a variable may keep the effect away
				continue
			}
			at, ok := placeOf(g, branch.Body.List[0])
			if ok && slices.ContainsFunc(nodesIn(list[i+1]), func(n ast.Node) bool {
				next, isCall := n.(*ast.CallExpr)
				return isCall && reaches(at, next, nil)
			}) {
				c.report(branch, "mark", "after an error of MarkEffect another attempt may be under way, and the effect must not happen; return, and answer 503")
			}
		}
	})
}

func nodesIn(n ast.Node) (nodes []ast.Node) {
	ast.Inspect(n, func(n ast.Node) bool {
		if n != nil {
			nodes = append(nodes, n)
		}
		return true
	})
	return nodes
}

var (
	writes = regexp.MustCompile(`(?is)^\s*(with\b.*\b)?(insert|update|delete|merge|call)\b`)
	twice  = regexp.MustCompile(`(?i)on conflict|create (table|index)|if not exists`)
)

// effect names the effect of a call, empty if it has none, or it is not known.
func (c *checker) effect(call *ast.CallExpr, n name) string {
	switch {
	case n.pkg == "net/http" && (n.name == "Post" || n.name == "PostForm"):
		return "a request"
	case n.pkg == "net/http" && n.recv == "Client" && n.name == "Do" && len(call.Args) == 1:
		made, ok := c.resolve(call.Args[0]).(*ast.CallExpr)
		if !ok {
			return ""
		}
		for _, arg := range made.Args {
			if method, ok := c.text(arg); ok && slices.Contains([]string{"POST", "PUT", "PATCH", "DELETE"}, method) {
				return "a request"
			}
		}
	case n.name == "Exec" || n.name == "ExecContext":
		fits := n.pkg == "database/sql" && (n.recv == "DB" || n.recv == "Conn") ||
			strings.HasPrefix(n.pkg, "github.com/jackc/pgx/") && (n.recv == "Pool" || n.recv == "Conn")
		for _, arg := range call.Args {
			if text, ok := c.text(arg); fits && ok && writes.MatchString(text) && !twice.MatchString(text) {
				return "a statement that writes"
			}
		}
	}
	return ""
}

// downstreamKeys reports two calls of one function with one derived key: the service takes the second for a retry.
func (c *checker) downstreamKeys(f function) {
	first := map[string]*ast.CallExpr{}
	var order []*ast.CallExpr
	callsIn(f.body, func(call *ast.CallExpr, above []ast.Node) {
		if _, n := c.callee(call); n.pkg == "core/idempotency" && n.name == "DownstreamKey" && !has[*ast.FuncLit](above) {
			if len(above) > 0 {
				if by, ok := above[len(above)-1].(*ast.CallExpr); ok && c.work(by) {
					order = append(order, by)
				}
			}
		}
	})
	var g *cfg.CFG
	for _, by := range order {
		key := ""
		for _, arg := range by.Args {
			if call, ok := unparen(arg).(*ast.CallExpr); ok {
				if _, n := c.callee(call); n.name == "DownstreamKey" {
					key = c.source(by.Fun) + " " + c.source(call)
				}
			}
		}
		earlier := first[key]
		if earlier == nil {
			first[key] = by
			continue
		}
		if c.source(earlier) == c.source(by) {
			continue // the same call again
		}
		if g == nil {
			g = c.graph(f)
		}
		if at, ok := placeOf(g, earlier); ok && reaches(at, by, nil) {
			c.report(by, "key", "two calls of %s have one derived key, and the service takes the second for a retry of the first; name them, as in DownstreamKey(ctx, \"fee\")", c.source(by.Fun))
		}
	}
}

// isTransaction reports whether a type is a transaction of a database.
func isTransaction(t types.Type) bool {
	return isType(t, "database/sql", "Tx") || typeName(t) == "Tx" && strings.HasPrefix(pathOf(t), "github.com/jackc/pgx/") ||
		isType(t, "github.com/jmoiron/sqlx", "Tx")
}
