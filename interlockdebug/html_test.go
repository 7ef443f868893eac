package interlockdebug_test

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/html"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/interlockdebug"
	_ "github.com/interlock-go/interlock/internal/bubble"
)

// hostile are names that could do harm where they are not escaped.
var hostile = []string{
	`<script>alert(1)</script>`, `"><img src=x onerror=alert(1)>`, "\x1b[31mred\x07", "back\u202eward", "a\x00b\r\n", "\xff\xfe", `{{.Secret}}`, "'`&amp;",
}

func TestHostileNamesAreShownEscaped(t *testing.T) {
	o := interlockdebug.NewObserver()
	l := newLocker(t, memstore.New(), core.WithObserver(o))
	h := interlockdebug.Handler(l, interlockdebug.Observed(o), interlockdebug.ShowKeys())
	for _, name := range hostile {
		defer release(t, lock(t, l, name, core.Name(name)))
	}
	body := ask(h, http.MethodGet, "/?refresh=%3Cscript%3E", "text/html").Body.String()
	doc := parse(t, body)
	for _, n := range elements(doc) {
		if n.Data == "script" || n.Data == "img" {
			t.Errorf("an element %s", n.Data)
		}
	}
	for _, text := range []string{body, ask(h, http.MethodGet, "/", "application/json").Body.String()} {
		for _, bad := range []string{"\x1b", "\x07", "\u202e", "\x00", "\xff", "<script>", "<img"} {
			if strings.Contains(text, bad) {
				t.Errorf("%q is shown as it is:\n%s", bad, text)
			}
		}
	}
	for _, want := range []string{`\u202e`, `\x1b[31mred\a`, `a\x00b\r\n`, `\xff\xfe`, `&lt;script&gt;`, `{{.Secret}}`} {
		if !strings.Contains(body, want) {
			t.Errorf("%q is not shown", want)
		}
	}
	var keys []string
	for _, l := range asJSON(t, h).Locks {
		keys = append(keys, l.Key)
	}
	for _, name := range hostile {
		if name != "\xff\xfe" && !slices.Contains(keys, name) { // JSON has no such text
			t.Errorf("%q is not in %q", name, keys)
		}
	}
}

func parse(t *testing.T, body string) *html.Node {
	t.Helper()
	doc, err := html.Parse(strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

func elements(n *html.Node) (all []*html.Node) {
	for d := range n.Descendants() {
		if d.Type == html.ElementNode {
			all = append(all, d)
		}
	}
	return all
}

func attribute(n *html.Node, name string) string {
	for _, a := range n.Attr {
		if a.Key == name {
			return a.Val
		}
	}
	return ""
}

// Each column has a header, each table a name, and each can be scrolled by keys.
func TestThePageIsAccessibleHTML(t *testing.T) {
	o := interlockdebug.NewObserver()
	l := newLocker(t, memstore.New(), core.WithObserver(o))
	defer release(t, lock(t, l, "k"))
	w := ask(interlockdebug.Handler(l, interlockdebug.Observed(o)), http.MethodGet, "/", "")
	// Elements that a browser opens and closes by itself were forgotten.
	open := []string{}
	void := []string{"meta", "rect", "br"}
	for z := html.NewTokenizer(strings.NewReader(w.Body.String())); ; {
		kind := z.Next()
		if kind == html.ErrorToken {
			break
		}
		name, _ := z.TagName()
		switch {
		case kind == html.StartTagToken && !slices.Contains(void, string(name)):
			open = append(open, string(name))
		case kind == html.EndTagToken && (len(open) == 0 || open[len(open)-1] != string(name)):
			t.Fatalf("</%s> closes %v", name, open)
		case kind == html.EndTagToken:
			open = open[:len(open)-1]
		}
	}
	if len(open) > 0 {
		t.Errorf("%v are never closed", open)
	}
	doc := parse(t, w.Body.String())
	ids, tables := map[string]bool{}, 0
	for _, n := range elements(doc) {
		if id := attribute(n, "id"); id != "" {
			if ids[id] {
				t.Errorf("two elements have the id %q", id)
			}
			ids[id] = true
		}
		if attribute(n, "style") != "" || attribute(n, "onclick") != "" {
			t.Errorf("<%s> has what the policy forbids", n.Data)
		}
		switch n.Data {
		case "html":
			if attribute(n, "lang") == "" {
				t.Error("no language")
			}
		case "th":
			if s := attribute(n, "scope"); s != "col" && s != "row" {
				t.Errorf("a header with scope %q", s)
			}
		case "table":
			tables++
			around := n.Parent
			if attribute(around, "tabindex") != "0" || attribute(around, "role") != "region" || !ids[attribute(around, "aria-labelledby")] {
				t.Errorf("a table in %+v", around.Attr)
			}
			rows, columns := 0, 0
			for _, d := range elements(n) {
				if d.Data != "tr" {
					continue
				}
				rows++
				cells := 0
				for range d.ChildNodes() {
					cells++
				}
				if columns == 0 {
					columns = cells
				}
				if cells != columns {
					t.Errorf("a row of %d cells under %d headers", cells, columns)
				}
			}
			if rows < 2 {
				t.Errorf("a table of %d rows", rows)
			}
		case "svg":
			if attribute(n, "role") != "img" || attribute(n, "aria-label") == "" {
				t.Errorf("a picture without a text: %+v", n.Attr)
			}
		}
	}
	if tables != 2 {
		t.Errorf("%d tables", tables)
	}
}

func TestRequestsAreAnsweredAsHTTPWants(t *testing.T) {
	l := newLocker(t, memstore.New())
	h := interlockdebug.Handler(l, nil)
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodOptions} {
		if w := ask(h, method, "/", ""); w.Code != http.StatusMethodNotAllowed || w.Header().Get("Allow") != "GET, HEAD" {
			t.Errorf("%s: %d, %v", method, w.Code, w.Header())
		}
	}
	w := ask(h, http.MethodHead, "/", "")
	if w.Code != http.StatusOK {
		t.Errorf("HEAD: %d", w.Code)
	}
	for name, want := range map[string]string{
		"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store", "Vary": "Accept", "Refresh": "",
	} {
		if got := w.Header().Get(name); got != want {
			t.Errorf("%s: %q; want %q", name, got, want)
		}
	}
	policy := w.Header().Get("Content-Security-Policy")
	if !strings.HasPrefix(policy, "default-src 'none'; style-src 'sha256-") || strings.Contains(policy, "unsafe") {
		t.Errorf("policy %q", policy)
	}
	for accept, want := range map[string]string{
		"":                 "text/html; charset=utf-8",
		"*/*":              "text/html; charset=utf-8",
		"application/json": "application/json",
		"text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8": "text/html; charset=utf-8",
		"text/html;q=0.5, application/json":                               "application/json",
		"application/json;q=0.5, text/html":                               "text/html; charset=utf-8",
		"application/*":                                                   "application/json",
		"nonsense; ;":                                                     "text/html; charset=utf-8",
	} {
		if got := ask(h, http.MethodGet, "/", accept).Header().Get("Content-Type"); got != want {
			t.Errorf("Accept: %s: %s; want %s", accept, got, want)
		}
	}
	for query, want := range map[string]string{"refresh=5": "5", "refresh=0": "", "refresh=-1": "", "refresh=4000": "", "refresh=x": "", "": ""} {
		if got := ask(h, http.MethodGet, "/?"+query, "").Header().Get("Refresh"); got != want {
			t.Errorf("%s: %q; want %q", query, got, want)
		}
	}
	if s := asJSON(t, h); s.Observed || s.Locks == nil || s.Rules == nil || s.Losses == nil || s.Claims == nil {
		t.Errorf("%+v", s)
	}
	if body := ask(h, http.MethodGet, "/", "").Body.String(); !strings.Contains(body, "There are no counts") {
		t.Errorf("%s", body)
	}
	defer func() {
		if err, ok := recover().(error); !ok || !errors.Is(err, core.ErrConfig) {
			t.Errorf("a nil locker: %v", err)
		}
	}()
	interlockdebug.Handler(nil)
}
