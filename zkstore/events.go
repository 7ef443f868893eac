package zkstore

import (
	"strings"
	"sync"

	"github.com/go-zookeeper/zk"
)

// events passes the events of watches on. The client has a channel for each watch; to wait for all of them takes time
// that grows with their number.
type events struct {
	mu sync.Mutex
	to map[string]map[*watching]bool // by the name of their base
}

// listen has the events of a watch be passed on until stop is called.
func (e *events) listen(w *watching) (stop func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.to[w.base] == nil {
		e.to[w.base] = map[*watching]bool{}
	}
	e.to[w.base][w] = true
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		if delete(e.to[w.base], w); len(e.to[w.base]) == 0 {
			delete(e.to, w.base)
		}
	}
}

// pass passes an event on: to the watches of the node, and of the nodes below the one above it. The client calls it
// before it takes the next answer of the server, and so before the answer to each later read.
func (e *events) pass(event zk.Event) {
	name, ok := strings.CutPrefix(event.Path, "/")
	if !ok {
		return // it is about the session
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for w := range e.to[name] {
		w.fires(name, event)
	}
	if i := strings.LastIndexByte(name, '/'); i >= 0 {
		for w := range e.to[name[:i]] {
			if !w.one {
				w.fires(name, event)
			}
		}
	}
}
