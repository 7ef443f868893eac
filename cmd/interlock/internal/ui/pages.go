package ui

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/interlock-go/interlock/core/fleet"
	"github.com/interlock-go/interlock/internal/display"
)

// firstWithin is how long the table waits for the first reading. Where that takes longer,
// the page comes empty, and its rows with the first event.
const firstWithin = 3 * time.Second

// page is the data of the templates.
type page struct {
	Title    string
	Source   string
	ReadOnly bool
	Now      int64
	Events   string // where its news come from; empty if it has none
	Content  content

	// Of the table.
	Search, Sort string
	Sorts        []sortLink
	Reading      bool // nothing has been read yet

	// Of the pages of one lock.
	Key, Link string
	Notice    string

	// Of forms.
	Action  string
	Wrong   bool
	Problem string
	Typed   string
	Holder  holderRow
}

// sortLink is an order that can be chosen.
type sortLink struct {
	Name, Title, Link string
	Chosen            bool
}

// render writes a page.
func (u *UI) render(w http.ResponseWriter, status int, name string, p page) {
	if p.Now = now(); name != "login" { // which anyone may see
		p.Source, p.ReadOnly = u.config.Source, u.config.ReadOnly
	}
	var html bytes.Buffer
	if err := templates.ExecuteTemplate(&html, name, p); err != nil {
		slog.Error("interlock: a page cannot be shown", "page", name, "error", err)
		http.Error(w, "This page cannot be shown.", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(html.Bytes()) // the browser has left
}

// globOf makes a pattern of a search. A search has keys as they are shown: a text without
// wildcards is looked for anywhere in a key.
func globOf(search string) string {
	pattern, err := display.Parse(search)
	if err != nil {
		pattern = search
	}
	if pattern == "" || strings.ContainsAny(pattern, "*?") {
		return pattern
	}
	return "*" + pattern + "*"
}

// listQuery is the query of a request for the table.
func listQuery(r *http.Request) query {
	q := r.URL.Query()
	return query{pattern: visible(q.Get("q")), sort: sortOf(q.Get("sort"))}
}

// list shows the table of locks.
func (u *UI) list(w http.ResponseWriter, r *http.Request) {
	q := listQuery(r)
	v, err := u.lists.join(q)
	if err != nil {
		u.render(w, http.StatusServiceUnavailable, "list", u.listPage(q, &state{problem: words(err)}))
		return
	}
	defer u.lists.leave(v)
	s, news := u.lists.look(v)
	if s == nil {
		timer := time.NewTimer(firstWithin)
		defer timer.Stop()
		select {
		case <-news:
		case <-timer.C:
		case <-r.Context().Done():
		case <-u.lists.closed:
		}
		s, _ = u.lists.look(v)
	}
	u.render(w, http.StatusOK, "list", u.listPage(q, s))
}

// listPage is the page of a state, or of none.
func (u *UI) listPage(q query, s *state) page {
	p := page{Title: "Locks", Search: q.pattern, Sort: q.sort, Events: "events?" + q.encode(), Reading: s == nil}
	if s == nil {
		s = &state{}
	}
	p.Content = u.listContent(q, s)
	if p.Reading {
		p.Content.Texts["summary"] = "Reading the locks. This takes long where Redis has many keys."
		p.Content.Hidden["none"] = true
	}
	for _, o := range sorts {
		link := query{pattern: q.pattern, sort: o.Name}
		p.Sorts = append(p.Sorts, sortLink{o.Name, o.Title, "./?" + link.encode(), o.Name == q.sort})
	}
	return p
}

// listContent is the part of a state that the table shows.
func (u *UI) listContent(_ query, s *state) content {
	rows := make([]row, len(s.rows))
	for i, r := range s.rows {
		rows[i] = r
	}
	return content{
		Lists:  map[string][]row{"locks": rows},
		Texts:  map[string]string{"summary": summary(s), "problem": s.problem},
		Hidden: map[string]bool{"problem": s.problem == "", "table": len(rows) == 0, "none": len(rows) > 0 || s.problem != ""},
	}
}

// summary says how many locks there are.
func summary(s *state) string {
	text := ""
	switch {
	case !s.read:
		return ""
	case s.problem != "":
		text = "When they were read last: "
	}
	text += counted(s.total, "lock is held", "locks are held")
	if s.waited > 0 {
		text += ", " + strconv.Itoa(s.waited) + " waited for"
	}
	if s.total > len(s.rows) {
		text += fmt.Sprintf(". The first %d are shown: search for others", len(s.rows))
	}
	return text + "."
}

// counted is a number with its word.
func counted(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + many
}

// lock shows the page of one lock.
func (u *UI) lock(w http.ResponseWriter, r *http.Request) {
	key := r.URL.Query().Get("key")
	if key == "" {
		seeOther(w, "/")
		return
	}
	s := u.readLock(r.Context(), key)
	p := page{
		Title: "Lock " + short(key, 80), Key: display.Text(key), Link: linkTo("lock", key),
		Events: linkTo("events", key), Content: u.lockContent(query{key: key}, s),
	}
	if token, err := strconv.ParseInt(r.URL.Query().Get("released"), 10, 64); err == nil {
		p.Notice = u.released.notice(key, token)
	}
	u.render(w, http.StatusOK, "lock", p)
}

// lockContent is the part of a state that a lock's page shows.
func (u *UI) lockContent(q query, s *state) content {
	l := &s.lock
	var holders, waiters []row
	for i := range l.Holders[:min(len(l.Holders), manyRows)] {
		holders = append(holders, u.holderRowOf(q.key, &l.Holders[i], s.at))
	}
	for i := range l.Waiters {
		wait := &l.Waiters[i]
		next := waiterRow{ID: identOf(wait.Locker.ID), Position: i + 1, Process: processOf(&wait.Locker), Wants: "the lock alone"}
		switch {
		case wait.Called:
			next.Wants = "a place, called to a free one"
		case wait.Place:
			next.Wants = "a place beside others"
		}
		if wait.Kept {
			next.Wants += "; the lock is kept for it"
		}
		waiters = append(waiters, next)
	}
	held := "free"
	switch {
	case l.Kept > 0:
		held = "kept for processes that wait, without a holder"
	case l.Kind == fleet.Exclusive:
		held = "held by one, exclusively"
	case l.Kind == fleet.Places:
		held = "held at " + kindOf(l) + " beside each other"
	}
	if len(l.Holders) > manyRows {
		held += fmt.Sprintf("; the first %d are shown", manyRows)
	}
	fence := "none"
	if l.Fence != 0 {
		fence = strconv.FormatInt(l.Fence, 10)
	}
	return content{
		Lists: map[string][]row{"holders": holders, "waiters": waiters},
		Texts: map[string]string{
			"held": held, "fence": fence, "problem": s.problem,
			"waiting": counted(len(l.Waiters), "process", "processes"),
		},
		Hidden: map[string]bool{
			"problem": s.problem == "", "holders-table": len(holders) == 0, "no-holders": len(holders) > 0,
			"waiters-table": len(waiters) == 0, "no-waiters": len(waiters) > 0,
		},
	}
}

func (u *UI) holderRowOf(key string, h *fleet.Holder, at time.Time) holderRow {
	r := holderRow{
		ID: identOf(h.Owner), Process: holderOf(h), Owner: short(h.Owner, 80), Token: h.Token, Times: timesOf(h, at),
		Attentive: h.Attentive,
	}
	if !u.config.ReadOnly {
		r.Release = linkTo("release", key, "token", strconv.FormatInt(h.Token, 10))
	}
	return r
}

// grant is the key and token of a request.
func grant(r *http.Request) (key string, token int64, ok bool) {
	key = r.URL.Query().Get("key")
	token, err := strconv.ParseInt(r.URL.Query().Get("token"), 10, 64)
	return key, token, err == nil && key != ""
}

// askRelease shows the form that confirms a release.
func (u *UI) askRelease(w http.ResponseWriter, r *http.Request) {
	u.confirmation(w, r, http.StatusOK, "", "")
}

// release releases a grant after its key was typed.
func (u *UI) release(w http.ResponseWriter, r *http.Request) {
	key, token, ok := grant(r)
	typed := r.PostFormValue("confirm")
	switch {
	case u.config.ReadOnly:
		u.confirmation(w, r, http.StatusForbidden, "", "")
		return
	case !ok:
		u.confirmation(w, r, http.StatusBadRequest, "", "")
		return
	case !confirms(typed, key):
		u.confirmation(w, r, http.StatusUnprocessableEntity, "That is not the key. Nothing was released.", typed)
		return
	}
	// The release goes on if the browser leaves.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), 2*readWithin)
	defer cancel()
	h, err := u.config.Fleet.Release(fleet.By(ctx, userOf(r)), key, token)
	if err != nil {
		problem := words(err)
		switch {
		case errors.Is(err, fleet.ErrOutcomeUnknown):
			problem += " It is unknown whether the lock was released: its page shows who holds it when the server answers again."
		case !strings.HasSuffix(problem, nothing):
			problem += nothing
		}
		u.confirmation(w, r, http.StatusConflict, problem, typed)
		return
	}
	u.released.note(key, token, h.Attentive)
	seeOther(w, linkTo("lock", key, "released", strconv.FormatInt(token, 10)))
}

// userOf names the user of a request for the logs: the address, and the names that a proxy in front sends.
// Who reaches the page without the proxy can send any name: the address stands first.
func userOf(r *http.Request) string {
	user := r.RemoteAddr
	for _, name := range []string{"X-Forwarded-For", "X-Forwarded-User"} {
		if value := r.Header.Get(name); value != "" {
			user += fmt.Sprintf(", %s %q", name, short(value, 80))
		}
	}
	return user
}

// confirmation shows the effects of a release, and the mistake of the last try.
func (u *UI) confirmation(w http.ResponseWriter, r *http.Request, status int, problem, typed string) {
	key, token, ok := grant(r)
	p := page{
		Title: "Release " + short(key, 80), Key: display.Text(key), Link: linkTo("lock", key),
		Problem: problem, Typed: display.Text(typed), Wrong: status == http.StatusUnprocessableEntity,
	}
	switch {
	case u.config.ReadOnly:
		p.Title, p.Problem = "Read only", "This page was started with -read-only: nothing can be released here."
		status = http.StatusForbidden
	case !ok:
		p.Title, p.Problem = "Release", "The address names no lock and token. Follow the link of a holder."
		status = http.StatusBadRequest
	default:
		s := u.readLock(r.Context(), key)
		for i := range s.lock.Holders {
			if h := &s.lock.Holders[i]; h.Token == token {
				p.Holder = u.holderRowOf(key, h, s.at)
				p.Action = linkTo("release", key, "token", strconv.FormatInt(token, 10))
			}
		}
		if p.Action == "" && problem == "" {
			if p.Problem = s.problem; p.Problem == "" {
				p.Problem = words(fleet.ErrNoGrant)
			}
			status = http.StatusConflict
		}
	}
	u.render(w, status, "release", p)
}
