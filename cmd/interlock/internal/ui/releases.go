package ui

import (
	"fmt"
	"sync"
)

// releases are the last releases of this page. A link can name any release; the page confirms
// only releases that happened.
type releases struct {
	mu   sync.Mutex
	last []noted
}

type noted struct {
	key       string
	token     int64
	attentive bool
}

// manyNoted is the number of releases that are kept.
const manyNoted = 64

// note notes a release.
func (r *releases) note(key string, token int64, attentive bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last = append(r.last, noted{key, token, attentive})
	r.last = r.last[max(0, len(r.last)-manyNoted):]
}

// notice reports a release that happened, and no other.
func (r *releases) notice(key string, token int64) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, n := range r.last {
		if n.key != key || n.token != token {
			continue
		}
		when := "at its next renewal"
		if n.attentive {
			when = "at once"
		}
		return fmt.Sprintf("Released: the grant with token %d has ended. Its holder finds that out %s.", token, when)
	}
	return ""
}
