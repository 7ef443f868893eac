package ui

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"time"
)

const (
	// heartbeat is how often a page that has no news is written to, so that a
	// connection that is broken ends.
	heartbeat = 15 * time.Second
	// writeWithin bounds one write to a page.
	writeWithin = 10 * time.Second
)

// update is a message to a page. Its parts are found in the page by their ids.
type update struct {
	Now   int64             `json:"now"` // so that ages are right on a browser with a wrong clock
	Lists map[string]list   `json:"lists"`
	Texts map[string]string `json:"texts"`
	// Hidden says which parts are hidden.
	Hidden map[string]bool `json:"hidden"`
}

// list is the rows of a table: their order, and the HTML of the new rows.
type list struct {
	Order []string          `json:"order"`
	Rows  map[string]string `json:"rows"`
}

// content is the part of a state that a page shows.
type content struct {
	Lists  map[string][]row
	Texts  map[string]string
	Hidden map[string]bool
}

// events tells a page its news until it leaves.
func (u *UI) events(w http.ResponseWriter, r *http.Request) {
	l, q, show := u.lists, listQuery(r), u.listContent
	if key := r.URL.Query().Get("key"); key != "" {
		l, q, show = u.locks, query{key: key}, u.lockContent
	}
	v, err := l.join(q)
	if err != nil {
		http.Error(w, words(err), http.StatusServiceUnavailable)
		return
	}
	defer l.leave(v)
	out := http.NewResponseController(w)
	_ = out.SetReadDeadline(time.Time{}) // the server's own is for requests that are short
	w.Header().Set("Content-Type", "text/event-stream")
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	known := pageNews{rows: map[string]map[string]row{}}
	text := []byte("retry: 2000\n\n")
	for {
		s, news := l.look(v)
		if s != nil {
			more, err := known.event(show(q, s))
			if err != nil {
				return
			}
			text = append(text, more...)
		}
		if len(text) > 0 {
			_ = out.SetWriteDeadline(time.Now().Add(writeWithin))
			if _, err := w.Write(text); err != nil || out.Flush() != nil {
				return
			}
			text = text[:0]
		}
		select {
		case <-news:
		case <-beat.C:
			text = append(text, ":\n\n"...)
		case <-r.Context().Done():
			return
		case <-l.closed:
			return
		}
	}
}

// pageNews is the last message to one page.
type pageNews struct {
	rows map[string]map[string]row // by table and id
	rest []byte                    // the last update without HTML and time
}

// event makes the event that brings a page up to date, or nothing if it is.
func (k *pageNews) event(c content) ([]byte, error) {
	up := update{Now: now(), Lists: map[string]list{}, Texts: c.Texts, Hidden: c.Hidden}
	orders := map[string][]string{}
	fresh := false
	for name, rows := range c.Lists {
		l := list{Order: make([]string, 0, len(rows)), Rows: map[string]string{}}
		sent := make(map[string]row, len(rows))
		for _, r := range rows {
			id := r.ident()
			l.Order = append(l.Order, id)
			if old, ok := k.rows[name][id]; ok && r.like(old) {
				sent[id] = old
				continue
			}
			var html bytes.Buffer
			if err := templates.ExecuteTemplate(&html, r.part(), r); err != nil {
				return nil, err
			}
			sent[id], l.Rows[id], fresh = r, html.String(), true
		}
		k.rows[name], up.Lists[name], orders[name] = sent, l, l.Order
	}
	rest, err := json.Marshal([]any{orders, c.Texts, c.Hidden})
	if err != nil || !fresh && bytes.Equal(rest, k.rest) {
		return nil, err
	}
	k.rest = rest
	data, err := json.Marshal(up)
	return fmt.Appendf(nil, "data: %s\n\n", data), err
}
