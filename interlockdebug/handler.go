package interlockdebug

import (
	"bytes"
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/internal/display"
)

// Option configures a [Handler]. A nil Option has no effect.
type Option func(*page)

// Engines adds the claims of idempotent endpoints that are not settled. Engines made
// by Engine.With are included. A nil engine is left out. Default: none.
func Engines(engines ...*idempotency.Engine) Option {
	return func(p *page) {
		for _, e := range engines {
			if e != nil {
				p.engines = append(p.engines, e)
			}
		}
	}
}

// Observed adds the counts of an [Observer]. A page has one: [Handler] panics if it gets
// another one. Default: the page has no counts.
func Observed(o *Observer) Option {
	return func(p *page) {
		if p.observer != nil && p.observer != o {
			panic(fmt.Errorf("%w: interlockdebug.Handler: Observed with two observers; one Observer may have several lockers", core.ErrConfig))
		}
		p.observer = o
	}
}

// ShowKeys shows the keys of locks in addition to their hashes. Keys often name
// customers: who sees the page sees them. Principals and idempotency keys are never
// shown. Default: hashes alone.
func ShowKeys() Option { return func(p *page) { p.showKeys = true } }

// page is the handler.
type page struct {
	locker   *core.Locker
	engines  []*idempotency.Engine
	observer *Observer
	showKeys bool
}

// Handler returns the page of a locker. It answers GET and HEAD on every path. With
// the query refresh=5 a browser asks again every 5 seconds (1 to 3600). It panics if
// locker is nil, as [core.Serialize] does for a rule that cannot work. The package
// comment says where to serve it.
func Handler(locker *core.Locker, opts ...Option) http.Handler {
	if locker == nil {
		panic(fmt.Errorf("%w: interlockdebug.Handler: locker is nil; core.New makes one", core.ErrConfig))
	}
	p := &page{locker: locker}
	for _, o := range opts {
		if o != nil {
			o(p)
		}
	}
	return p
}

// ServeHTTP implements [http.Handler].
func (p *page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("X-Content-Type-Options", "nosniff")
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		h.Set("Allow", "GET, HEAD")
		http.Error(w, "this page is read with GET", http.StatusMethodNotAllowed)
		return
	}
	display.Protect(h, policy, "no-referrer")
	h.Set("Vary", "Accept")
	var body bytes.Buffer
	if wantsJSON(r.Header.Values("Accept")) {
		h.Set("Content-Type", "application/json")
		text, err := json.Marshal(p.snapshot())
		if err != nil {
			panic(err) // it is made of numbers and texts
		}
		appendASCII(&body, text)
	} else {
		h.Set("Content-Type", "text/html; charset=utf-8")
		view := view{Snapshot: p.snapshot()}
		if n, err := strconv.Atoi(r.URL.Query().Get("refresh")); err == nil && n >= 1 && n <= 3600 {
			view.Refresh = n
			h.Set("Refresh", strconv.Itoa(n))
		}
		if err := document.Execute(&body, view); err != nil {
			panic(err) // the tests execute all of it
		}
	}
	_, _ = w.Write(body.Bytes()) // it fails if the client has left
}

// wantsJSON reports whether a client likes JSON better than HTML.
func wantsJSON(accept []string) bool {
	asJSON, asHTML := 0.0, 0.0
	for part := range strings.SplitSeq(strings.Join(accept, ","), ",") {
		kind, params, err := mime.ParseMediaType(part)
		if err != nil {
			continue
		}
		q := 1.0
		if text, ok := params["q"]; ok {
			if q, err = strconv.ParseFloat(text, 64); err != nil {
				continue
			}
		}
		switch kind {
		case "application/json", "application/*":
			asJSON = max(asJSON, q)
		case "text/html", "text/*":
			asHTML = max(asHTML, q)
		}
	}
	return asJSON > asHTML
}

// appendASCII appends a text in JSON. Characters that could deceive its reader on a terminal,
// such as marks that change the direction of writing, are escaped.
func appendASCII(b *bytes.Buffer, text []byte) {
	for len(text) > 0 {
		r, n := utf8.DecodeRune(text)
		switch {
		case r < utf8.RuneSelf || strconv.IsPrint(r):
			b.Write(text[:n])
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(b, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(b, `\u%04x`, r)
		}
		text = text[n:]
	}
	b.WriteByte('\n')
}
