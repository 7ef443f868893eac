package checks_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/grpc/status"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/reason"
	"github.com/interlock-go/interlock/internal/grpcx"
	"github.com/interlock-go/interlock/internal/httpx"
)

// refused is a row of the table of refusals: the anchor, the reason, and the answers over HTTP
// and gRPC.
var refused = regexp.MustCompile("(?m)^\\| <a id=\"([a-z-]+)\"></a>`([a-z-]+)` \\| (\\S+), ([A-Z_]+) \\| .+ \\|$")

// A client has urn:interlock:problem:held and no more. Its author finds the row in docs/use.md.
func TestEachReasonOfARefusalHasARowAndAnAnchor(t *testing.T) {
	atRoot(t)
	_, section, _ := strings.Cut(read(t, "docs/use.md"), "\n## Refusals\n")
	rows := map[string][]string{}
	for _, row := range refused.FindAllStringSubmatch(section, -1) {
		if row[1] != row[2] || rows[row[1]] != nil {
			t.Errorf("docs/use.md: the row of %s has the anchor %s; want its own anchor, and one row for each reason", row[2], row[1])
		}
		rows[row[1]] = row[3:]
	}
	all := reasons(t)
	for _, why := range all {
		answer := rows[string(why)]
		delete(rows, string(why))
		if answer == nil {
			t.Errorf("docs/use.md#refusals has no row with an anchor for %q", why)
			continue
		}
		refusal := &core.Refusal{Reason: why}
		inHTTP := "none"
		if code, _ := httpx.Problem(refusal, make(http.Header)); code > 0 {
			inHTTP = strconv.Itoa(code)
		}
		code := status.Code(grpcx.Status(t.Context(), "/a.b/C", refusal)).String()
		if answer[0] != inHTTP || !strings.EqualFold(strings.ReplaceAll(answer[1], "_", ""), code) {
			t.Errorf("docs/use.md says %s, %s of %q; the adapters answer %s, %s", answer[0], answer[1], why, inHTTP, code)
		}
	}
	for row := range rows {
		t.Errorf("docs/use.md#refusals has a row for %q, which is no reason", row)
	}
	if len(all) < 30 {
		t.Errorf("only %d reasons found: the test has gone blind", len(all))
	}
}

// reasons returns the constants of core/reason.
func reasons(t *testing.T) (all []reason.Reason) {
	for _, decl := range declarations(t, "core/reason") {
		of, ok := decl.(*ast.GenDecl)
		if !ok || of.Tok != token.CONST {
			continue
		}
		for _, spec := range of.Specs {
			value, ok := spec.(*ast.ValueSpec)
			if !ok {
				continue
			}
			if name, ok := value.Type.(*ast.Ident); ok && name.Name == "Reason" {
				text, err := strconv.Unquote(value.Values[0].(*ast.BasicLit).Value)
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, reason.Reason(text))
			}
		}
	}
	return all
}

// An option that stands on no page is found only by a reader who knows its name.
func TestEachOptionIsOnAPage(t *testing.T) {
	atRoot(t)
	use, all := read(t, "docs/use.md"), ""
	for _, page := range documents(t) {
		if page == "README.md" || strings.HasPrefix(page, "docs/") {
			all += read(t, page)
		}
	}
	locks, endpoints := options(t, "core"), options(t, "core/idempotency")
	for _, name := range locks {
		if !regexp.MustCompile("(?m)^\\| (`[A-Za-z]+`, )*`" + name + "`(, `[A-Za-z]+`)* \\|").MatchString(use) {
			t.Errorf("docs/use.md has no row for the option core.%s", name)
		}
	}
	for _, name := range endpoints {
		if !regexp.MustCompile("(`|idempotency\\.)" + name + "[`(]").MatchString(all) {
			t.Errorf("no page names the option idempotency.%s", name)
		}
	}
	if len(locks) < 25 || len(endpoints) < 20 {
		t.Errorf("only %d options of locks and %d of endpoints found: the test has gone blind", len(locks), len(endpoints))
	}
}

// options returns the exported functions of a package that return an option.
func options(t *testing.T, dir string) (names []string) {
	for _, decl := range declarations(t, dir) {
		f, ok := decl.(*ast.FuncDecl)
		if !ok || f.Recv != nil || !f.Name.IsExported() || f.Type.Results.NumFields() != 1 {
			continue
		}
		if of, ok := f.Type.Results.List[0].Type.(*ast.Ident); ok && strings.HasSuffix(of.Name, "Option") {
			names = append(names, f.Name.Name)
		}
	}
	slices.Sort(names)
	return names
}

// declarations returns the declarations of a package at the top of its files, without its tests.
func declarations(t *testing.T, dir string) (all []ast.Decl) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, file.Decls...)
	}
	return all
}
