package analyzer

import (
	"go/ast"
	"go/types"
	"strings"
)

// wrapped is a handler behind middleware of Interlock.
type wrapped struct {
	handler    ast.Expr
	rule       ast.Expr // of Guard
	idempotent bool
}

var adapters = map[string]bool{"httplock": true, "ginlock": true, "echolock": true, "echolock/v5": true}

// middleware returns the rule of a value that an adapter's Guard or Idempotent made.
func (c *checker) middleware(e ast.Expr) (rule ast.Expr, idempotent, ok bool) {
	call, made := c.resolve(e).(*ast.CallExpr)
	if !made || len(call.Args) == 0 {
		return nil, false, false
	}
	_, n := c.callee(call)
	if !adapters[n.pkg] || n.name != "Guard" && n.name != "Idempotent" {
		return nil, false, false
	}
	if n.name == "Guard" {
		return call.Args[0], false, true
	}
	callsIn(c.resolve(call.Args[0]), func(call *ast.CallExpr, _ []ast.Node) { // engine.With(idempotency.Under(rule))
		if _, n := c.callee(call); n.pkg == "core/idempotency" && n.name == "Under" && len(call.Args) == 1 {
			rule = call.Args[0]
		}
	})
	return rule, true, true
}

// handlers looks at the handlers behind middleware: Guard(rule)(handler), or both as arguments of a route.
func (c *checker) handlers() {
	var all []wrapped
	for _, file := range c.files {
		callsIn(file, func(call *ast.CallExpr, _ []ast.Node) {
			if rule, idempotent, ok := c.middleware(call.Fun); ok && len(call.Args) == 1 {
				all = append(all, wrapped{call.Args[0], rule, idempotent})
			}
			for _, arg := range call.Args {
				if rule, idempotent, ok := c.middleware(arg); ok {
					for _, other := range call.Args {
						if _, _, is := c.middleware(other); !is && c.isHandler(other) {
							all = append(all, wrapped{other, rule, idempotent})
						}
					}
				}
			}
		})
	}
	for _, w := range all {
		c.timeLimit(w)
		kind, body := c.innermost(w.handler)
		if body == nil {
			continue
		}
		c.handler(kind, body)
		if w.rule != nil {
			c.formValues(w.rule, body)
		}
	}
}

// isHandler reports whether an argument of a route is a function.
func (c *checker) isHandler(e ast.Expr) bool {
	t := c.info.TypeOf(e)
	if t == nil {
		return false
	}
	_, ok := t.Underlying().(*types.Signature)
	return ok
}

// innermost returns the function that is in the middle of conversions and middleware.
func (c *checker) innermost(e ast.Expr) (*ast.FuncType, *ast.BlockStmt) {
	for range 8 {
		if kind, body, _ := c.functionOf(e); body != nil {
			return kind, body
		}
		call, ok := c.resolve(e).(*ast.CallExpr)
		if !ok || len(call.Args) != 1 {
			return nil, nil
		}
		if _, _, is := c.middleware(call.Fun); !is && !c.info.Types[call.Fun].IsType() {
			return nil, nil
		}
		e = call.Args[0]
	}
	return nil, nil
}

// timeLimit reports a time limit inside an idempotent endpoint.
func (c *checker) timeLimit(w wrapped) {
	if !w.idempotent {
		return
	}
	e := w.handler
	for range 8 {
		call, ok := c.resolve(e).(*ast.CallExpr)
		if !ok || len(call.Args) == 0 {
			return
		}
		if _, n := c.callee(call); n.pkg == "net/http" && n.name == "TimeoutHandler" {
			c.report(call, "handler", "http.TimeoutHandler inside Idempotent answers 503 while the handler runs, and a retry runs in parallel; put it around Idempotent")
			return
		}
		e = call.Args[0]
	}
}

// handler reports work in a handler with a context that is not the request's.
func (c *checker) handler(kind *ast.FuncType, body *ast.BlockStmt) {
	own, ok := c.parameter(kind, isSource)
	if !ok || own == nil {
		return
	}
	callsIn(body, func(call *ast.CallExpr, above []ast.Node) {
		if c.apart(above) || !c.work(call) || c.onlyCleansUp(call, above, body) {
			return
		}
		for _, arg := range call.Args {
			if c.isBackground(arg) {
				c.report(arg, "context", "%s in a handler under a lock or a claim goes on when that is lost; pass %s", c.source(arg), contextOf(own))
			}
			if c.object(arg) == own && isGinContext(own.Type()) && !c.passesOn() && c.asContext(call, arg) {
				c.report(arg, "context", "a *gin.Context does not end when the lock or claim is lost; pass %s", contextOf(own))
			}
		}
	})
}

// asContext reports whether an argument is for a parameter of type context.Context.
func (c *checker) asContext(call *ast.CallExpr, arg ast.Expr) bool {
	signature, ok := c.info.TypeOf(call.Fun).(*types.Signature)
	if !ok {
		return false
	}
	for i, a := range call.Args {
		if a == arg && i < signature.Params().Len() {
			return isContext(signature.Params().At(i).Type())
		}
	}
	return false
}

// formValues reports values that the template takes from the query, and the handler from the form.
func (c *checker) formValues(rule ast.Expr, body *ast.BlockStmt) {
	named := map[string]bool{}
	callsIn(c.resolve(rule), func(call *ast.CallExpr, _ []ast.Node) {
		_, n := c.callee(call)
		if at := ruleTemplate(n); at >= 0 && at < len(call.Args) {
			text, _ := c.text(call.Args[at])
			_, values := skeleton(text)
			for _, v := range values {
				if field, ok := strings.CutPrefix(v.name, "query."); ok {
					named[field] = true
				}
			}
		}
	})
	callsIn(body, func(call *ast.CallExpr, _ []ast.Node) {
		_, n := c.callee(call)
		reads := n.pkg == "net/http" && n.recv == "Request" && (n.name == "FormValue" || n.name == "PostFormValue") ||
			n.recv == "Context" && (n.name == "FormValue" || n.name == "PostForm")
		if !reads || len(call.Args) == 0 {
			return
		}
		if field, ok := c.text(call.Args[0]); ok && named[field] {
			c.report(call, "handler", "the rule locks {query.%s}, and %s prefers the body; read it with r.URL.Query().Get(%q)", field, c.source(call.Fun), field)
		}
	})
}
