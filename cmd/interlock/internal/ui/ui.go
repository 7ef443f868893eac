package ui

import (
	"context"
	"crypto/rand"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"iter"
	"net/http"
	"path"
	"time"

	"github.com/interlock-go/interlock/core/fleet"
	"github.com/interlock-go/interlock/internal/display"
)

// Fleet is the part of a [fleet.Fleet] that the pages need.
type Fleet interface {
	Locks(ctx context.Context, pattern string) iter.Seq2[fleet.Lock, error]
	Inspect(ctx context.Context, key string) (fleet.Lock, error)
	Release(ctx context.Context, key string, token int64) (fleet.Holder, error)
}

// Config has the parts of a [UI].
type Config struct {
	// Fleet has the locks.
	Fleet Fleet
	// Source says in a few words which Redis it is. It is shown on each page.
	Source string
	// Hosts are the names and addresses that browsers may use for the pages, next to
	// localhost and the loopback addresses. "*" stands for each IP address.
	Hosts []string
	// Token is asked for before anything is shown, unless it is empty.
	Token string
	// ReadOnly says that nothing can be released.
	ReadOnly bool
}

// minToken is the least length of a token. A random token of that length is not guessed.
const minToken = 16

// UI is the handler of the pages. [New] makes one. It is safe for concurrent use.
type UI struct {
	config  Config
	session string // the content of the cookie that a browser gets for the token
	handler http.Handler
	lists   *loop // the tables of locks
	locks   *loop // the pages of one lock

	released releases
}

//go:embed templates/*.html
var templateFiles embed.FS

//go:embed static
var staticFiles embed.FS

var templates = template.Must(template.New("").Funcs(template.FuncMap{"since": sinceText, "left": leftText, "columns": display.Columns}).
	ParseFS(templateFiles, "templates/*.html"))

// New makes a [UI]. Close it at the end.
func New(c Config) (*UI, error) {
	switch {
	case c.Fleet == nil:
		return nil, errors.New("no Fleet")
	case c.Token != "" && len(c.Token) < minToken:
		return nil, fmt.Errorf("the token has %d characters; it needs at least %d", len(c.Token), minToken)
	}
	u := &UI{config: c, session: rand.Text()}
	u.lists, u.locks = newLoop(u.readLists), newLoop(u.readLocks)

	pages := http.NewServeMux()
	pages.HandleFunc("GET /{$}", u.list)
	pages.HandleFunc("GET /lock", u.lock)
	pages.HandleFunc("GET /release", u.askRelease)
	pages.HandleFunc("POST /release", u.release)
	pages.HandleFunc("GET /events", u.events)

	all := http.NewServeMux()
	all.HandleFunc("GET /static/{name}", static)
	all.HandleFunc("POST /login", u.login)
	all.Handle("/", u.authenticated(pages))
	u.handler = u.guarded(all)
	return u, nil
}

// ServeHTTP serves a page.
func (u *UI) ServeHTTP(w http.ResponseWriter, r *http.Request) { u.handler.ServeHTTP(w, r) }

// types are the types of the static files.
var types = map[string]string{".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}

// static serves an embedded file.
func static(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	text, err := staticFiles.ReadFile("static/" + name)
	if err != nil {
		http.NotFound(w, r)
		return
	}
	if name == "ui.css" {
		text = append([]byte(display.Style), text...)
	}
	w.Header().Set("Content-Type", types[path.Ext(name)])
	_, _ = w.Write(text) // the browser has left
}

// Close ends the reading, and the pages' connections for events.
func (u *UI) Close() {
	u.lists.close()
	u.locks.close()
}

// now is the time as the pages have it: milliseconds since 1970.
func now() int64 { return time.Now().UnixMilli() }
