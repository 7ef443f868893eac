package analyzer

import (
	"go/ast"
	"go/token"
	"go/types"
	"slices"

	"golang.org/x/tools/go/cfg"
)

// releases reports leases that are dropped, or not released on a path through the function.
func (c *checker) releases(f function) {
	var g *cfg.CFG
	eachList(f.body, func(list []ast.Stmt) {
		for _, stmt := range list {
			var made *ast.AssignStmt
			switch stmt := stmt.(type) {
			case *ast.ExprStmt:
				if call, ok := unparen(stmt.X).(*ast.CallExpr); ok && c.isAcquire(call) && !c.endsByItself(call) {
					c.report(call, "release", "the lease is dropped, and its lock is never released; keep it, and defer lease.Release(ctx)")
				}
				continue
			case *ast.AssignStmt:
				made = stmt
			case *ast.IfStmt:
				made, _ = stmt.Init.(*ast.AssignStmt)
			}
			if made == nil || len(made.Lhs) != 2 || len(made.Rhs) != 1 {
				continue
			}
			call, ok := unparen(made.Rhs[0]).(*ast.CallExpr)
			if !ok || !c.isAcquire(call) || c.endsByItself(call) {
				continue
			}
			id, ok := made.Lhs[0].(*ast.Ident)
			if !ok {
				continue // a field: another function releases it
			}
			if id.Name == "_" {
				c.report(call, "release", "the lease is dropped, and its lock is never released; keep it, and defer lease.Release(ctx)")
				continue
			}
			lease, err := c.info.ObjectOf(id), c.object(made.Lhs[1])
			if ignored, ok := made.Lhs[1].(*ast.Ident); ok && ignored.Name == "_" {
				c.report(made, "release", "the error of %s says whether the lock was taken; without it %s may be nil", c.source(call.Fun), id.Name)
				continue
			}
			if escaped, later := c.escapes(f.body, lease); escaped || later {
				continue
			}
			if made.Tok == token.ASSIGN && c.releasedIn(f.body, lease) {
				continue // a variable that outlives the statement, as of a loop
			}
			if g == nil {
				g = c.graph(f)
			}
			if at, ok := placeOf(g, made); ok && c.leaks(at, made, lease, err) {
				c.report(made, "release", "%s is not released on all paths, and the lock stays held while the process lives; defer %s.Release(ctx)", id.Name, id.Name)
			}
		}
	})
}

// endsByItself reports whether a lease has a fixed end, or may have one: core.TTL.
func (c *checker) endsByItself(call *ast.CallExpr) bool {
	if call.Ellipsis.IsValid() {
		return true
	}
	ttl := func(args []ast.Expr) bool {
		for _, arg := range args {
			option, ok := c.resolve(arg).(*ast.CallExpr)
			if !ok {
				if isOption(c.info.TypeOf(arg)) {
					return true // the option of a caller
				}
				continue
			}
			if _, n := c.callee(option); n.pkg == "core" && n.name == "TTL" {
				return true
			}
		}
		return false
	}
	if ttl(call.Args) {
		return true
	}
	for _, file := range c.files { // a locker with fixed leases
		found := false
		callsIn(file, func(call *ast.CallExpr, _ []ast.Node) {
			if _, n := c.callee(call); n.pkg == "core" && n.recv == "" && n.name == "New" {
				found = found || call.Ellipsis.IsValid() || ttl(call.Args)
			}
		})
		if found {
			return true
		}
	}
	return false
}

func isOption(t types.Type) bool {
	return isType(t, module+"/core", "Option") || isType(t, module+"/core", "LockerOption")
}

// escapes reports whether a lease is given to other code, which may release it: it is returned,
// stored, sent or passed. later reports whether a function literal releases it.
func (c *checker) escapes(body ast.Node, lease types.Object) (escaped, later bool) {
	ast.PreorderStack(body, nil, func(n ast.Node, above []ast.Node) bool {
		id, ok := n.(*ast.Ident)
		if !ok || c.info.Uses[id] != lease || len(above) == 0 {
			return true
		}
		switch parent := above[len(above)-1].(type) {
		case *ast.SelectorExpr: // a method
			if method := parent.Sel.Name; method == "Release" || method == "HandOver" {
				later = later || has[*ast.FuncLit](above) // deferred, or a callback
				if len(above) < 2 || !isCallOf(above[len(above)-2], parent) {
					escaped = true // a method value
				}
			} else if method == "Context" && (has[*ast.ReturnStmt](above) || has[*ast.CompositeLit](above)) && !c.calledIn(above) {
				escaped = true // LeaseFromContext finds it
			}
		case *ast.BinaryExpr: // lease == nil
		case *ast.AssignStmt:
			if len(parent.Rhs) == 1 && unparen(parent.Rhs[0]) != ast.Expr(id) {
				return true // the next lease
			}
			for _, l := range parent.Lhs {
				if l == ast.Expr(id) {
					return true // the next lease
				}
			}
			if len(parent.Lhs) == 1 {
				if blank, ok := parent.Lhs[0].(*ast.Ident); ok && blank.Name == "_" {
					return true
				}
			}
			escaped = true
		case *ast.CallExpr:
			f, _ := c.callee(parent)
			escaped = escaped || f == nil || !isInterlock(f.Pkg().Path())
		default:
			escaped = true
		}
		return !escaped
	})
	return escaped, later
}

// calledIn reports whether the innermost nodes are an argument of a further call, as in return work(lease.Context()).
func (c *checker) calledIn(above []ast.Node) bool {
	calls := 0
	for _, n := range above {
		if _, ok := n.(*ast.CallExpr); ok {
			calls++
		}
	}
	return calls > 1
}

func isCallOf(n ast.Node, fun ast.Expr) bool {
	call, ok := n.(*ast.CallExpr)
	return ok && call.Fun == fun
}

// mayRelease reports whether a lease may be released after a statement. A branch that leaves the
// list of statements says nothing about the statements after it.
func (c *checker) mayRelease(stmt ast.Stmt, lease types.Object) bool {
	switch stmt := stmt.(type) {
	case *ast.DeferStmt:
		return false
	case *ast.IfStmt:
		if list := stmt.Body.List; len(list) > 0 && stmt.Else == nil && !c.ends(stmt, lease) {
			switch list[len(list)-1].(type) {
			case *ast.ReturnStmt, *ast.BranchStmt:
				return false
			}
		}
	}
	return c.releasedIn(stmt, lease)
}

// ends reports whether a node has a call of Release or HandOver of a lease.
func (c *checker) ends(n ast.Node, lease types.Object) bool {
	switch n := n.(type) {
	case *ast.IfStmt: // of the branches nothing is known
		return n.Init != nil && c.ends(n.Init, lease) || c.ends(n.Cond, lease)
	case *ast.ForStmt, *ast.RangeStmt, *ast.SwitchStmt, *ast.TypeSwitchStmt, *ast.SelectStmt:
		return false
	}
	found := false
	callsIn(n, func(call *ast.CallExpr, _ []ast.Node) {
		if sel, ok := unparen(call.Fun).(*ast.SelectorExpr); ok && (sel.Sel.Name == "Release" || sel.Sel.Name == "HandOver") && c.object(sel.X) == lease {
			found = true
		}
		if _, n := c.callee(call); n.pkg == "core" && n.recv == "" && n.name == "HandOver" {
			found = true
		}
	})
	return found
}

// releasedIn reports whether a function has a call of Release or HandOver of a lease.
func (c *checker) releasedIn(body ast.Node, lease types.Object) bool {
	return slices.ContainsFunc(nodesIn(body), func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		return ok && c.ends(call, lease)
	})
}

// leaks reports whether control can leave the function, or take the lock again, after a check of the
// error without a call of Release.
func (c *checker) leaks(from place, made *ast.AssignStmt, lease, err types.Object) bool {
	type state struct {
		block *cfg.Block
		taken bool // the error was nil
		fresh bool // the error is the one of the lock
	}
	seen := map[state]bool{}
	var walk func(b *cfg.Block, at int, taken, fresh bool) bool
	walk = func(b *cfg.Block, at int, taken, fresh bool) bool {
		next := b.Succs
		nodes := b.Nodes[at:]
		for i, n := range nodes {
			if c.ends(n, lease) {
				return false
			}
			if n == ast.Node(made) {
				return taken
			}
			if _, ok := n.(*ast.ReturnStmt); ok {
				return taken
			}
			if a, ok := n.(*ast.AssignStmt); ok && c.assignedIn(err, a) {
				if !taken { // it was not looked at
					return false
				}
				fresh = false
			}
			if i < len(nodes)-1 || len(b.Succs) != 2 {
				continue
			}
			if c.isFlag(n) && c.releasedBelow(b.Succs, lease) {
				return false // the flag may say that it was released
			}
			if branch, object := c.errorIsNil(n, lease, err); object == lease && object != nil || object != nil && fresh {
				next, taken = b.Succs[branch:branch+1], true
			}
		}
		for _, block := range next {
			if walkOnce(seen, state{block, taken, fresh}, func() bool { return walk(block, 0, taken, fresh) }) {
				return true
			}
		}
		return false
	}
	return walk(from.block, from.index+1, false, true)
}

// isFlag reports whether a condition is a variable.
func (c *checker) isFlag(cond ast.Node) bool {
	if not, ok := cond.(*ast.UnaryExpr); ok {
		cond = unparen(not.X)
	}
	e, ok := cond.(ast.Expr)
	if !ok {
		return false
	}
	_, ok = c.object(e).(*types.Var)
	return ok
}

// releasedBelow reports whether a lease is released in a branch of the statement that has the blocks.
func (c *checker) releasedBelow(blocks []*cfg.Block, lease types.Object) bool {
	for _, b := range blocks {
		if branch, ok := b.Stmt.(*ast.IfStmt); ok && (c.ends(branch.Body, lease) || branch.Else != nil && c.ends(branch.Else, lease)) {
			return true
		}
	}
	return false
}

func walkOnce[S comparable](seen map[S]bool, s S, walk func() bool) bool {
	if seen[s] {
		return false
	}
	seen[s] = true
	return walk()
}

// errorIsNil returns the branch of a condition on which a lock was taken, and the variable that says it.
func (c *checker) errorIsNil(n ast.Node, lease, err types.Object) (branch int, by types.Object) {
	cond, ok := n.(*ast.BinaryExpr)
	if !ok {
		return 0, nil
	}
	x, y := unparen(cond.X), unparen(cond.Y)
	if c.info.Types[x].IsNil() {
		x, y = y, x
	}
	object := c.object(x)
	if !c.info.Types[y].IsNil() || object != err && object != lease {
		return 0, nil
	}
	if (object == err) == (cond.Op == token.NEQ) {
		branch = 1
	}
	return branch, object
}
