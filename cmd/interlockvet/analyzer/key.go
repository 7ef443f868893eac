package analyzer

import (
	"go/ast"
	"go/token"
	"go/types"
	"regexp"
	"slices"
	"strings"
)

// keyArgument returns the places of the key, or keys, among the arguments of a call.
func keyArgument(n name) int {
	switch {
	case n.pkg == "core" && n.recv == "Locker" && (n.name == "Do" || slices.Contains(acquires, n.name) && n.name != "TakeOver"):
		return 1
	case n.pkg == "core" && n.recv == "" && n.name == "Lead", n.pkg == "core/idempotency/once" && n.name == "Do":
		return 2
	}
	return -1
}

// keys looks at the keys of calls.
func (c *checker) keys(file *ast.File) {
	callsIn(file, func(call *ast.CallExpr, _ []ast.Node) {
		_, n := c.callee(call)
		if at := keyArgument(n); at >= 0 && at < len(call.Args) {
			keys := []ast.Expr{call.Args[at]}
			if list, ok := c.resolve(call.Args[at]).(*ast.CompositeLit); ok {
				keys = list.Elts
			}
			for _, key := range keys {
				c.key(key)
			}
		}
		tokenFree := n.pkg == "core/fencing" && n.name == "IdempotencyKey" || n.pkg == "core/idempotency" && n.name == "DownstreamKey"
		for _, arg := range call.Args {
			if tokenFree && c.hasToken(arg) {
				c.report(arg, "key", "the fencing token in an idempotency key makes another key after a lost lock, and the effect happens twice; leave the token out")
			}
		}
	})
}

// hasToken reports whether a value is made of a fencing token.
func (c *checker) hasToken(e ast.Expr) bool {
	found := false
	callsIn(c.resolve(e), func(call *ast.CallExpr, _ []ast.Node) {
		if sel, ok := unparen(call.Fun).(*ast.SelectorExpr); ok && sel.Sel.Name == "Token" && isLease(c.info.TypeOf(sel.X)) {
			found = true
		}
		for _, arg := range call.Args {
			if id, ok := unparen(arg).(*ast.Ident); ok && c.resolve(id) != ast.Expr(id) && c.hasToken(id) {
				found = true
			}
		}
	})
	return found
}

// part is a piece of a key: constant text, or a value.
type part struct {
	text  string
	value ast.Expr
}

// key reports a key of several texts, which two different resources can have.
func (c *checker) key(e ast.Expr) {
	parts := c.parts(c.resolve(e))
	texts, separated := []string{}, false
	for i, p := range parts {
		if p.value == nil {
			separated = separated || i > 0 && i < len(parts)-1
			continue
		}
		if c.free(p.value) {
			texts = append(texts, c.source(p.value))
		}
	}
	if len(texts) > 1 && separated {
		c.report(e, "key", "%s may contain the separator, and two resources would have one key; make the key with core.Key(%s)", texts[0], c.segments(parts))
		return
	}
	if len(texts) == 1 && len(parts) <= 2 {
		for _, t := range c.templates() {
			skeleton, forms := skeleton(t.text)
			if len(forms) == 1 && parts[0].value == nil && skeleton == parts[0].text+"{}" {
				c.report(e, "key", "a rule locks %s, where the text of %s is escaped and %s; make the same key with core.Key(%s)",
					t.text, texts[0], formed(forms[0]), c.segments(parts))
				return
			}
		}
	}
}

func formed(f placeholder) string {
	if f.form == "" {
		return "never empty"
	}
	return "brought into the form " + f.form
}

// segments returns the arguments of core.Key.
func (c *checker) segments(parts []part) string {
	var args []string
	for _, p := range parts {
		if p.value != nil {
			args = append(args, c.source(p.value))
			continue
		}
		for segment := range strings.FieldsFuncSeq(p.text, func(r rune) bool { return strings.ContainsRune("/:|#.", r) }) {
			args = append(args, `"`+segment+`"`)
		}
	}
	return strings.Join(args, ", ")
}

var verb = regexp.MustCompile(`%[a-z]`)

// parts takes a concatenation, or a call of Sprintf with simple verbs, apart.
func (c *checker) parts(e ast.Expr) []part {
	e = unparen(e)
	if text, ok := c.text(e); ok {
		return []part{{text: text}}
	}
	switch e := e.(type) {
	case *ast.BinaryExpr:
		if e.Op == token.ADD {
			return append(c.parts(e.X), c.parts(e.Y)...)
		}
	case *ast.CallExpr:
		_, n := c.callee(e)
		if n.pkg != "fmt" || n.name != "Sprintf" || len(e.Args) < 2 || e.Ellipsis.IsValid() {
			break
		}
		format, ok := c.text(e.Args[0])
		at := verb.FindAllStringIndex(format, -1)
		if !ok || len(at) != len(e.Args)-1 || strings.Count(format, "%") != len(at) {
			break
		}
		var all []part
		end := 0
		for i, place := range at {
			if place[0] > end {
				all = append(all, part{text: format[end:place[0]]})
			}
			all, end = append(all, part{value: e.Args[i+1]}), place[1]
		}
		if end < len(format) {
			all = append(all, part{text: format[end:]})
		}
		return all
	}
	return []part{{value: e}}
}

// free reports whether a value may be any text: it is a string, and not the result of a function
// that makes texts of one form.
func (c *checker) free(e ast.Expr) bool {
	t := c.info.TypeOf(e)
	if t == nil {
		return false
	}
	basic, ok := t.Underlying().(*types.Basic)
	if !ok || basic.Info()&types.IsString == 0 {
		return false
	}
	if _, named := types.Unalias(t).(*types.Named); named {
		return false // it may have few values
	}
	switch e := c.resolve(e).(type) {
	case *ast.CallExpr:
		_, n := c.callee(e)
		return n.name == "PathValue" || n.name == "Param" || n.name == "FormValue" || n.name == "URLParam" || n.recv == "Values" && n.name == "Get" ||
			n.recv == "Header" && n.name == "Get"
	case *ast.Ident, *ast.SelectorExpr, *ast.IndexExpr:
		return true
	}
	return false
}

// names reports a key that is used as a name of metrics.
func (c *checker) names(file *ast.File) {
	callsIn(file, func(call *ast.CallExpr, _ []ast.Node) {
		_, n := c.callee(call)
		at := keyArgument(n)
		if at < 0 || at >= len(call.Args) {
			return
		}
		for _, arg := range call.Args[at+1:] {
			option, ok := unparen(arg).(*ast.CallExpr)
			if !ok || len(option.Args) != 1 {
				continue
			}
			_, n := c.callee(option)
			key := c.object(call.Args[at])
			if n.pkg == "core" && n.name == "Name" && key != nil && c.object(option.Args[0]) == key {
				if _, constant := c.text(call.Args[at]); !constant {
					c.report(option, "key", "a key as a Name makes a series of metrics for each key; use a text with few different values")
				}
			}
		}
	})
}

// template is the template of a rule.
type template struct {
	text string
	at   ast.Expr
}

// placeholder is a value in a template.
type placeholder struct{ name, form string }

var braces = regexp.MustCompile(`\{([^{}:]*)(?::([a-z]+))?\}`)

// skeleton returns a template without the names of its placeholders, and these.
func skeleton(text string) (string, []placeholder) {
	var all []placeholder
	for _, m := range braces.FindAllStringSubmatch(text, -1) {
		all = append(all, placeholder{m[1], m[2]})
	}
	return braces.ReplaceAllString(text, "{}"), all
}

// ruleTemplate returns the place of the template among the arguments of a function that makes a rule.
func ruleTemplate(n name) int {
	if n.pkg == "core" && n.recv == "" {
		switch n.name {
		case "Serialize", "Share", "NewGuard":
			return 1
		case "AtMost", "AtMostFunc":
			return 2
		case "And":
			return 0
		}
	}
	return -1
}

// templates returns the constant templates of the package, in order.
func (c *checker) templates() (all []template) {
	for _, file := range c.files {
		callsIn(file, func(call *ast.CallExpr, _ []ast.Node) {
			_, n := c.callee(call)
			if at := ruleTemplate(n); at >= 0 && at < len(call.Args) {
				if text, ok := c.text(call.Args[at]); ok {
					all = append(all, template{text: text, at: call.Args[at]})
				}
			}
		})
	}
	return all
}

// forms reports one resource under two forms. Fields of messages have a form by their type, so a
// package that serves gRPC is left out.
func (c *checker) forms() {
	for _, imported := range c.pass.Pkg.Imports() {
		if path := imported.Path(); path == module+"/grpclock" || path == module+"/connectlock" {
			return
		}
	}
	first := map[string]template{}
	for _, t := range c.templates() {
		text, values := skeleton(t.text)
		if strings.Trim(text, "{}/") == "" || len(values) == 0 {
			continue
		}
		earlier, ok := first[text]
		if !ok {
			first[text] = t
			continue
		}
		_, others := skeleton(earlier.text)
		for i, v := range values {
			if v.name == others[i].name && v.form != others[i].form {
				c.report(t.at, "key", "%s and %s make two locks for one resource, since 42 and 042 are two texts and one number; write one form in both", t.text, earlier.text)
			}
		}
	}
}
