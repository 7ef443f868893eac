package main

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// counts are the sizes of the module. Lines of code are lines that are neither blank nor comments, in
// files that no generator has written.
type counts struct {
	Shipping    int            // lines of code in packages that a program of a user can contain
	Modules     map[string]int // the same of each nested module for users, by its directory
	Support     int            // in tests, examples, and packages that serve these alone
	Wide        []string
	Acquisition int // fields of the struct of that name in package lock
	Back, All   int // calls from one file of package lock to another that run back, and all of them
	Interfaces  []string
	Contract    int // lines of code of package drivertest
}

// wide is from how many fields on a struct is wide.
const wide = 15

func (c counts) String() string {
	modules := ""
	for _, dir := range slices.Sorted(maps.Keys(c.Modules)) {
		modules += fmt.Sprintf("  %-29s %6d\n", dir, c.Modules[dir])
	}
	return fmt.Sprintf(`shipping lines of code          %6d
and those of nested modules     %6d
%slines of tests and support      %6d
structs with %d and more fields %6d  %s
fields of lock.acquisition      %6d
calls that run back in lock     %6d of %d, %.0f %%
interfaces of core/driver       %6d  %s
lines of code of drivertest     %6d
`, c.Shipping, c.nested(), modules, c.Support, wide, len(c.Wide), strings.Join(c.Wide, ", "), c.Acquisition, c.Back, c.All, c.backward(),
		len(c.Interfaces), strings.Join(c.Interfaces, ", "), c.Contract)
}

// nested is the sum of the shipping lines of the nested modules.
func (c counts) nested() (n int) {
	for _, lines := range c.Modules {
		n += lines
	}
	return n
}

// backward is the part of the calls that run back, in percent.
func (c counts) backward() float64 { return 100 * float64(c.Back) / float64(c.All) }

// count counts in the module of the working directory.
func count() (c counts, err error) {
	root, err := command(".", "list", "-m", "-f", "{{.Dir}}")
	if err != nil {
		return c, err
	}
	if err := c.module(root); err != nil {
		return c, err
	}
	c.Modules = map[string]int{}
	for _, pattern := range []string{"*/go.mod", "core/*/go.mod", "cmd/*/go.mod"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			return c, err
		}
		for _, file := range found {
			dir, err := filepath.Rel(root, filepath.Dir(file))
			if err != nil {
				return c, err
			}
			if slices.Contains([]string{"bench", "tools", "trust"}, dir) {
				continue // for the development of this one
			}
			var nested counts
			if err := nested.module(filepath.Join(root, dir)); err != nil {
				return c, err
			}
			c.Modules[dir] = nested.Shipping
		}
	}
	c.Back, c.All, err = arrows(filepath.Join(root, "core/internal/lock"))
	return c, err
}

// module counts in one module, without its nested modules.
func (c *counts) module(root string) error {
	shipped, err := shipping(root)
	if err != nil {
		return err
	}
	return filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			_, nested := os.Stat(filepath.Join(name, "go.mod"))
			if name != root && (nested == nil || strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata") {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		text, err := os.ReadFile(name)
		if err != nil || bytes.Contains(text[:min(len(text), 300)], []byte("Code generated")) {
			return err
		}
		dir, err := filepath.Rel(root, filepath.Dir(name))
		if err != nil {
			return err
		}
		lines := code(text)
		if strings.HasSuffix(name, "_test.go") || !shipped[dir] {
			c.Support += lines
			if dir == "core/driver/drivertest" && !strings.HasSuffix(name, "_test.go") {
				c.Contract += lines
			}
			return nil
		}
		c.Shipping += lines
		return c.declared(dir, name, text)
	})
}

// declared counts the structs and interfaces that a file declares.
func (c *counts) declared(dir, name string, text []byte) error {
	f, err := parser.ParseFile(token.NewFileSet(), name, text, 0)
	if err != nil {
		return err
	}
	for _, d := range f.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.TYPE {
			continue
		}
		for _, s := range g.Specs {
			t := s.(*ast.TypeSpec)
			switch what := t.Type.(type) {
			case *ast.StructType:
				n := what.Fields.NumFields()
				if n >= wide {
					c.Wide = append(c.Wide, path.Join(dir, t.Name.Name))
				}
				if dir == "core/internal/lock" && t.Name.Name == "acquisition" {
					c.Acquisition = n
				}
			case *ast.InterfaceType:
				if dir == "core/driver" && t.Name.IsExported() {
					c.Interfaces = append(c.Interfaces, t.Name.Name)
				}
			}
		}
	}
	return nil
}

// code counts the lines that are neither blank nor comments.
func code(text []byte) (n int) {
	inside := false // of a comment of several lines
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		line := strings.TrimSpace(lines.Text())
		switch {
		case inside:
			inside = !strings.Contains(line, "*/")
		case strings.HasPrefix(line, "/*"):
			inside = !strings.Contains(line, "*/")
		case line != "" && !strings.HasPrefix(line, "//"):
			n++
		}
	}
	return n
}

// command runs the command go in a directory, and returns its output.
func command(dir string, args ...string) (string, error) {
	var said strings.Builder
	run := exec.Command("go", args...)
	run.Dir, run.Stderr = dir, &said
	out, err := run.Output()
	if err != nil {
		return "", fmt.Errorf("go %s: %w: %s", strings.Join(args, " "), err, said.String())
	}
	return strings.TrimSpace(string(out)), nil
}

// shipping returns the directories of the packages that a program of a user can contain: the public
// packages, without examples and the suites for authors of stores and adapters, and their imports.
func shipping(root string) (map[string]bool, error) {
	out, err := command(root, "list", "-json=ImportPath,Imports,Module", "./...")
	if err != nil {
		return nil, err
	}
	imports, module := map[string][]string{}, ""
	for packages := json.NewDecoder(strings.NewReader(out)); ; {
		var p struct {
			ImportPath string
			Imports    []string
			Module     struct{ Path string }
		}
		if err := packages.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		imports[p.ImportPath], module = p.Imports, p.Module.Path
	}
	shipped := map[string]bool{}
	var ship func(of string)
	ship = func(of string) {
		dir := cmp.Or(strings.TrimPrefix(strings.TrimPrefix(of, module), "/"), ".")
		if all, ours := imports[of]; ours && !shipped[dir] {
			shipped[dir] = true
			for _, one := range all {
				ship(one)
			}
		}
	}
	for _, of := range slices.Sorted(maps.Keys(imports)) {
		parts := strings.Split(strings.TrimPrefix(of, module), "/")
		last := parts[len(parts)-1]
		if !slices.Contains(parts, "internal") && !slices.Contains(parts, "examples") && !strings.HasSuffix(last, "test") {
			ship(of)
		}
	}
	return shipped, nil
}

// arrows counts the places where one file of a package uses a function that another file declares,
// and those that run back: the files are in an order where few do.
func arrows(dir string) (back, all int, err error) {
	fset := token.NewFileSet()
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return 0, 0, err
	}
	var files []*ast.File
	names = slices.DeleteFunc(names, func(name string) bool { return strings.HasSuffix(name, "_test.go") })
	for _, name := range names {
		f, err := parser.ParseFile(fset, name, nil, 0)
		if err != nil {
			return 0, 0, err
		}
		files = append(files, f)
	}
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}}
	config := types.Config{Importer: importer.ForCompiler(fset, "source", nil)}
	if _, err := config.Check("lock", fset, files, info); err != nil {
		return 0, 0, err
	}
	uses := make([][]int, len(names)) // from a file to another
	for i := range uses {
		uses[i] = make([]int, len(names))
	}
	for id, of := range info.Uses {
		f, ok := of.(*types.Func)
		if !ok || f.Pkg() == nil || f.Pkg().Path() != "lock" {
			continue
		}
		from := slices.Index(names, fset.Position(id.Pos()).Filename)
		to := slices.Index(names, fset.Position(f.Pos()).Filename)
		if from != to {
			uses[from][to]++
			all++
		}
	}
	return fewest(uses), all, nil
}

// fewest returns how many uses run back in an order where no file can be moved to another place so that
// fewer do.
func fewest(uses [][]int) int {
	var order []int
	for i := range uses {
		order = append(order, i)
	}
	cost := func(order []int) (n int) {
		for at, from := range order {
			for _, to := range order[:at] {
				n += uses[from][to]
			}
		}
		return n
	}
	best := cost(order)
	for better := true; better; {
		better = false
		for i := range order {
			for j := range order {
				moved := slices.Delete(slices.Clone(order), i, i+1)
				moved = slices.Insert(moved, j, order[i])
				if n := cost(moved); n < best {
					best, order, better = n, moved, true
				}
			}
		}
	}
	return best
}
