package ui

import (
	"context"
	"errors"
	"sync"
	"time"
)

const (
	// pause is the least time between two rounds. A round that takes longer is followed
	// by as long a pause, up to longPause: Redis is read half of the time at most.
	pause, longPause = 400 * time.Millisecond, 10 * time.Second
	// linger is how long a view is read on after its last listener has left, so that
	// a page that is loaded again has it at once.
	linger = 3 * time.Second
	// lingerFirst is the same for a view that has not been read yet, for a page that does
	// not wait so long for it (firstWithin) and is loaded again.
	lingerFirst = 30 * time.Second
	// manyListeners bounds the pages that are open.
	manyListeners = 64
)

var (
	errClosed = errors.New("the server is ending")
	errMany   = errors.New("too many pages are open; close some")
)

// query is the view of a page.
type query struct {
	key     string // of the page of one lock
	pattern string // of the table
	sort    string
}

// view is a query that pages listen to.
type view struct {
	query
	listeners int
	until     time.Time     // it is kept until then without listeners
	last      *state        // the last reading, nil before the first
	news      chan struct{} // is closed when last changes
}

// loop reads views again and again while they have listeners, all in one goroutine.
type loop struct {
	// read reads some views and publishes the result.
	read func(ctx context.Context, views []*view)

	mu        sync.Mutex
	views     map[query]*view
	listeners int
	stop      context.CancelFunc // ends the goroutine; nil if there is none
	wake      chan struct{}      // a view waits for its first reading
	closed    chan struct{}
	running   sync.WaitGroup
}

func newLoop(read func(context.Context, []*view)) *loop {
	return &loop{read: read, views: map[query]*view{}, wake: make(chan struct{}, 1), closed: make(chan struct{})}
}

// join adds a listener to the view of a query. The caller leaves it at the end.
func (l *loop) join(q query) (*view, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.isClosed():
		return nil, errClosed
	case l.listeners >= manyListeners:
		return nil, errMany
	}
	v := l.views[q]
	if v == nil {
		v = &view{query: q, news: make(chan struct{})}
		l.views[q] = v
		select {
		case l.wake <- struct{}{}:
		default:
		}
	}
	v.listeners++
	l.listeners++
	if l.stop == nil {
		ctx, stop := context.WithCancel(context.Background())
		l.stop = stop
		l.running.Go(func() { l.run(ctx) })
	}
	return v, nil
}

// leave removes a listener. After the last one the reading goes on for a moment.
func (l *loop) leave(v *view) {
	l.mu.Lock()
	defer l.mu.Unlock()
	v.listeners--
	l.listeners--
	keep := linger
	if v.last == nil {
		keep = lingerFirst
	}
	if v.until = time.Now().Add(keep); v.listeners == 0 && !l.isClosed() {
		time.AfterFunc(keep, l.rest)
	}
}

// rest ends the goroutine, also in the middle of a round, if nothing listens and nothing
// has a moment ago.
func (l *loop) rest() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.forget(); len(l.views) == 0 && l.stop != nil {
		// A listener that comes now starts another goroutine. This one publishes
		// nothing more: its views are no listener's.
		l.stop()
		l.stop = nil
	}
}

// forget removes the views that nothing listens to. The caller has the mutex.
func (l *loop) forget() {
	for q, v := range l.views {
		if v.listeners == 0 && !time.Now().Before(v.until) {
			delete(l.views, q)
		}
	}
}

// run reads until ctx ends.
func (l *loop) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-l.wake:
		}
		l.mu.Lock()
		l.forget()
		select {
		case <-l.wake: // by a view that is read now
		default:
		}
		if len(l.views) == 0 && ctx.Err() == nil {
			l.stop()
			l.stop = nil
		}
		views := make([]*view, 0, len(l.views))
		for _, v := range l.views {
			views = append(views, v)
		}
		l.mu.Unlock()
		if ctx.Err() != nil {
			return
		}
		began := time.Now()
		l.read(ctx, views)
		timer.Reset(min(max(time.Since(began), pause), longPause))
	}
}

// publish passes a reading to the listeners of a view.
func (l *loop) publish(ctx context.Context, v *view, s *state) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if ctx.Err() != nil {
		return
	}
	v.last = s
	close(v.news)
	v.news = make(chan struct{})
}

// look returns the last reading of a view, nil before the first, and a channel that is closed
// at the next reading.
func (l *loop) look(v *view) (*state, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return v.last, v.news
}

// isClosed reports whether the loop has ended for good.
func (l *loop) isClosed() bool {
	select {
	case <-l.closed:
		return true
	default:
		return false
	}
}

// close ends the loop and its listeners, and waits for its goroutine.
func (l *loop) close() {
	l.mu.Lock()
	if !l.isClosed() {
		close(l.closed)
	}
	if l.stop != nil {
		l.stop()
		l.stop = nil
	}
	l.mu.Unlock()
	l.running.Wait()
}
