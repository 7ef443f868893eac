// Command way counts the functions and the files of this module that one request runs
// through, from the middleware of httplock to the script in Redis and back. It is for
// `make way`, which builds it with counters in every package of the module.
//
// Each request is sent warm: the same kind of request ran before, so that connections
// stand and scripts are loaded, and only the work of the last request is counted. The
// count has declared functions and methods; a function literal counts with the function
// that contains it. A function counts if the request runs at least one statement of the
// function, on any goroutine. Lua and the code of other modules are not in the count.
//
// The program fails if a request runs through more than it may. An author who adds a function
// to the way folds another.
package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/coverage"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/httplock"
)

// module is the path of the module that is counted.
const module = "github.com/interlock-go/interlock/"

// requests is how many requests of a kind run before the request that is counted.
const requests = 50

func main() {
	list := flag.Bool("list", false, "print the functions too, in the order of their files")
	flag.Parse()
	if err := run(*list); err != nil {
		log.Fatal(err)
	}
}

func run(list bool) error {
	dir, err := os.MkdirTemp("", "way")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }() // it is a temporary one
	socket := filepath.Join(dir, "redis.sock")
	server := exec.Command("redis-server", "--port", "0", "--unixsocket", socket, "--save", "", "--dir", dir)
	if err := server.Start(); err != nil {
		return err
	}
	defer func() {
		_ = server.Process.Kill()
		_ = server.Wait() // it was killed
	}()
	rdb := redis.NewClient(&redis.Options{Network: "unix", Addr: socket})
	defer func() { _ = rdb.Close() }() // the server ends next
	for begin := time.Now(); rdb.Ping(context.Background()).Err() != nil; {
		if time.Since(begin) > time.Minute {
			return fmt.Errorf("the Redis server does not answer: %w", rdb.Ping(context.Background()).Err())
		}
		time.Sleep(10 * time.Millisecond)
	}
	kinds, err := handlers(rdb)
	if err != nil {
		return err
	}
	var over error
	for i, kind := range kinds {
		covered := filepath.Join(dir, strconv.Itoa(i))
		if err := count(kind.handler, covered); err != nil {
			return err
		}
		functions, err := functionsOf(covered)
		if err != nil {
			return err
		}
		over = errors.Join(over, kind.print(functions, list))
	}
	return over
}

// kind is a kind of request, and through how many functions and files it may run.
type kind struct {
	name             string
	handler          http.Handler
	functions, files int
}

// handlers makes the handlers of the counted requests.
func handlers(rdb *redis.Client) ([]kind, error) {
	store, err := redisstore.New(rdb)
	if err != nil {
		return nil, err
	}
	locker, err := core.New(store)
	if err != nil {
		return nil, err
	}
	engine, err := idempotency.New(store, idempotency.Global())
	if err != nil {
		return nil, err
	}
	handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) })
	rule := core.Serialize(locker, "account/{id}")
	// The bounds are the present counts. A change that adds a function says what the function is for.
	return []kind{
		{"locked", httplock.Guard(rule)(handler), 130, 31},
		{"idempotent", httplock.Idempotent(engine)(handler), 144, 40},
		{"idempotent with a lock", httplock.Idempotent(engine.With(idempotency.Under(rule)))(handler), 234, 58},
	}, nil
}

// count leaves the counters of one warm request in a directory.
func count(h http.Handler, dir string) error {
	mux := http.NewServeMux()
	mux.Handle("POST /accounts/{id}", h)
	for i := range requests + 1 {
		if i == requests {
			if err := coverage.ClearCounters(); err != nil {
				return fmt.Errorf("%w: run this program by `make way`", err)
			}
		}
		r := httptest.NewRequest(http.MethodPost, "/accounts/42", strings.NewReader(`{"amount":1}`))
		r.Header.Set("Idempotency-Key", strconv.Quote(dir+strconv.Itoa(i)))
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		if w.Code != http.StatusCreated {
			return fmt.Errorf("a request was answered with %d: %s", w.Code, w.Body)
		}
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	if err := coverage.WriteCountersDir(dir); err != nil {
		return err
	}
	return coverage.WriteMetaDir(dir)
}

// functionsOf reads the counters of a directory: the functions that ran, by the file.
func functionsOf(dir string) (map[string][]string, error) {
	profile := filepath.Join(dir, "profile")
	if out, err := exec.Command("go", "tool", "covdata", "textfmt", "-i", dir, "-o", profile).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	text, err := os.ReadFile(profile)
	if err != nil {
		return nil, err
	}
	ran := map[string][]int{} // first lines of blocks
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		// name.go:line.column,line.column statements count
		name, rest, _ := strings.Cut(lines.Text(), ":")
		name, ours := strings.CutPrefix(name, module)
		line, _, _ := strings.Cut(rest, ".")
		n, err := strconv.Atoi(line)
		if !ours || err != nil || strings.HasSuffix(rest, " 0") || strings.HasPrefix(name, "internal/way/") {
			continue
		}
		ran[name] = append(ran[name], n)
	}
	functions := map[string][]string{}
	for name, blocks := range ran {
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, name, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		for _, decl := range file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if ok && slices.ContainsFunc(blocks, func(line int) bool {
				return files.Position(f.Pos()).Line <= line && line <= files.Position(f.End()).Line
			}) {
				functions[name] = append(functions[name], nameOf(f))
			}
		}
	}
	return functions, nil
}

// nameOf returns the name of a function, with the receiver of a method.
func nameOf(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return f.Name.Name
	}
	switch t := f.Recv.List[0].Type.(type) {
	case *ast.StarExpr:
		return "(*" + typeName(t.X) + ")." + f.Name.Name
	default:
		return typeName(t) + "." + f.Name.Name
	}
}

// typeName returns the name of a type, without its parameters.
func typeName(t ast.Expr) string {
	if generic, ok := t.(*ast.IndexExpr); ok {
		t = generic.X
	}
	return fmt.Sprint(t)
}

// print prints the functions that a request ran through. It returns an error if that is too
// much.
func (k kind) print(functions map[string][]string, list bool) error {
	n, files := 0, slices.Sorted(maps.Keys(functions))
	for _, all := range functions {
		n += len(all)
	}
	fmt.Printf("%-24s %4d functions (at most %d) %4d files (at most %d)\n", k.name, n, k.functions, len(files), k.files)
	for _, name := range files {
		if !list {
			break
		}
		fmt.Printf("\t%s\n", name)
		for _, f := range functions[name] {
			fmt.Printf("\t\t%s\n", f)
		}
	}
	if n > k.functions || len(files) > k.files {
		return fmt.Errorf("a request that is %s runs through more than it may: make way ARGS=-list shows it", k.name)
	}
	return nil
}
