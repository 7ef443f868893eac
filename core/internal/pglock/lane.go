package pglock

import (
	"context"
	"database/sql"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/interlock-go/interlock/core/internal/pgpool"
)

const (
	// maxBatch is the greatest number of requests in one statement.
	maxBatch = 512
	// maxLook is how many requests of the queue a worker looks at for one statement.
	maxLook = 4 * maxBatch
	// maxQueued is how many requests wait for a statement at most. Only a server that
	// hangs has so many; a request beyond it would have its answer long after its caller
	// has left.
	maxQueued = 16384
	// workerLinger is how long a worker stays when there is nothing to send.
	workerLinger = time.Second
	// borrowed is for how long a worker keeps a connection: the pool, which may want to
	// close it because of its age, must see it from time to time.
	borrowed = time.Second
)

// lane sends the requests of many goroutines. Requests that come while all workers have a
// statement under way wait in the queue, and go together with the next one. So under load
// requests share statements, and flushes of the server, and a lone request leaves at
// once.
//
// Requests for one key go together: the rules carry them out one after the other. Else a statement has requests
// with answers that wait for the disk, or requests with answers that do not.
type lane struct {
	store *Store
	most  int // workers

	mu     sync.Mutex
	queue  []*request
	idle   []*worker             // their goroutines wait
	busy   int                   // workers that are not idle
	parked map[string][]*request // by the keys of the rows that workers change now: later requests for them
	closed bool
	ended  sync.WaitGroup
}

// worker is a goroutine that sends statements, and its buffers.
type worker struct {
	lane  *lane
	wake  chan struct{} // holds a token once the worker was taken out of idle
	conn  *sql.Conn     // nil: none
	since time.Time     // when it got that

	batch    []*request
	keys     map[string]struct{} // of batch
	unwanted []*request          // that were taken out of the queue and are not sent
}

// submit queues requests; request.tried is called when the outcome of each is known.
func (l *lane) submit(all ...*request) {
	if err := l.enqueue(all); err != nil {
		for _, r := range all {
			r.finish(err)
		}
	}
}

// enqueue takes requests into the queue, and has a worker look at it if one is free.
func (l *lane) enqueue(all []*request) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed:
		return errShut
	case len(all) == 1 && all[0].asks && len(l.queue) >= maxQueued:
		return errFull
	}
	l.queue = append(l.queue, all...)
	l.dispatch()
	return nil
}

// dispatch starts a worker if there is something to send and one may be started. Called
// with l.mu held.
func (l *lane) dispatch() {
	if len(l.queue) == 0 || l.busy >= l.most {
		return
	}
	l.busy++
	if n := len(l.idle); n > 0 {
		w := l.idle[n-1]
		l.idle = l.idle[:n-1]
		w.wake <- struct{}{}
		return
	}
	w := &worker{lane: l, wake: make(chan struct{}, 1), keys: make(map[string]struct{})}
	l.ended.Go(w.run)
}

// run sends queued requests until there are none for a while.
func (w *worker) run() {
	defer w.giveBack()
	timer := time.NewTimer(workerLinger)
	defer timer.Stop()
	for {
		w.lane.gather()
		switch w.lane.next(w) {
		case ends:
			return
		case rests:
			if !w.lane.rest(w, timer) {
				return
			}
		case sends:
			w.dismiss()
			if len(w.batch) > 0 {
				w.exec()
			}
		}
	}
}

// gather lets the callers go first that are ready to run, among them those with an answer to the
// last statement: a request that comes a moment later would wait for the next statement, or
// need a separate one. Renewals come together, and wait for nobody.
func (l *lane) gather() {
	if l == &l.store.renewals {
		return
	}
	runtime.Gosched()
	runtime.Gosched() // after one, another processor can go on here before any of the callers
}

// step is what a worker does next.
type step int

const (
	sends step = iota // the requests that it has taken from the queue
	rests             // there is nothing to send
	ends              // nor will there be
)

// next gives a worker the queued requests.
func (l *lane) next(w *worker) step {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.queue) > 0 {
		if l.take(w); len(w.batch)+len(w.unwanted) > 0 {
			l.dispatch() // what did not fit goes with another worker
			return sends
		}
	}
	l.busy--
	if l.closed {
		return ends
	}
	l.idle = append(l.idle, w)
	return rests
}

// take moves requests that fit together from the queue to a worker's batch, and
// unwanted requests to its list of them. The oldest decides what fits. Called with l.mu
// held.
func (l *lane) take(w *worker) {
	now := time.Now()
	stay := l.queue[:0]
	n := 0
	for ; n < len(l.queue) && n < maxLook && len(w.batch) < maxBatch; n++ {
		switch r := l.queue[n]; {
		case r.unwanted(now):
			w.unwanted = append(w.unwanted, r)
		case l.park(r):
		case w.fits(r):
			w.batch = append(w.batch, r)
			w.keys[r.key] = struct{}{}
		default:
			stay = append(stay, r)
		}
	}
	stay = append(stay, l.queue[n:]...)
	clear(l.queue[len(stay):])
	for key := range w.keys {
		l.parked[key] = nil
	}
	if l.queue = stay; len(stay) == 0 && cap(stay) > maxLook {
		l.queue = nil // as long as it was while the server hung
	}
}

// fits reports whether a request can go with the requests of the batch.
func (w *worker) fits(r *request) bool {
	if len(w.batch) == 0 {
		return true
	}
	first := w.batch[0]
	_, taken := w.keys[r.key]
	return !r.alone && !first.alone && (taken || r.lasts == first.lasts && r.locks() == first.locks())
}

// park keeps a request for a row that another worker changes at this moment: it would only lose
// its compare. Called with l.mu held.
func (l *lane) park(r *request) (parked bool) {
	others, parked := l.parked[r.key]
	if parked {
		l.parked[r.key] = append(others, r)
	}
	return parked
}

// unpark queues the requests that were parked while a worker changed the rows of its batch.
func (l *lane) unpark(w *worker) {
	l.mu.Lock()
	var all []*request
	for key := range w.keys {
		all = append(all, l.parked[key]...)
		delete(l.parked, key)
	}
	l.mu.Unlock()
	if len(all) > 0 {
		l.submit(all...)
	}
}

// rest has an idle worker wait for more to send. It reports false when the worker is to
// end.
func (l *lane) rest(w *worker, timer *time.Timer) bool {
	timer.Reset(workerLinger)
	select {
	case <-w.wake:
		return true
	case <-timer.C:
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.Index(l.idle, w); i >= 0 {
		l.idle = slices.Delete(l.idle, i, i+1)
		return false
	}
	<-w.wake // taken just now: the token is there
	return true
}

// exec sends the batch and gives each request its outcome.
//
// The context is the statement's own. If a caller's ended it, database/sql would close the
// connection.
func (w *worker) exec() {
	s := w.lane.store
	ctx, cancel := context.WithTimeout(context.Background(), s.set.Timeout)
	defer cancel()
	err := w.connect(ctx)
	connected := err == nil
	if connected {
		w.reconsider()
		err = w.send(ctx)
		w.settle(ctx, err)
	}
	w.lane.unpark(w)
	for i, r := range w.batch {
		w.batch[i] = nil
		if err != nil {
			r.answer = nil
		}
		r.tried(err, connected)
	}
	w.batch = w.batch[:0]
	clear(w.keys)
	switch {
	case err != nil:
	case w.conn != nil:
		s.measure(w.conn)
	default:
		s.measure(s.db)
	}
}

// reconsider takes the requests out of the batch that are unwanted by now: a connection may
// have taken its time.
func (w *worker) reconsider() {
	now := time.Now()
	w.batch = slices.DeleteFunc(w.batch, func(r *request) bool {
		if r.unwanted(now) {
			w.unwanted = append(w.unwanted, r)
			return true
		}
		return false
	})
	w.dismiss()
}

// dismiss finishes the requests that are not sent.
func (w *worker) dismiss() {
	for i, r := range w.unwanted {
		w.unwanted[i] = nil
		r.dismiss()
	}
	w.unwanted = w.unwanted[:0]
}

// send sends the batch, and gives each request its answer.
func (w *worker) send(ctx context.Context) error {
	if len(w.batch) == 0 {
		return nil
	}
	now := time.Now()
	for _, r := range w.batch {
		if r.sent.IsZero() {
			r.sent = now
		}
		r.answer = nil
	}
	return w.carry(ctx)
}

// settle decides what becomes of the worker's connection after a try that ended in err.
func (w *worker) settle(ctx context.Context, err error) {
	switch {
	case pgpool.IsReadOnly(err):
		if pgpool.Retire(ctx, w.conn) {
			w.giveBack()
		}
	case err != nil && spoilt(err):
		pgpool.Discard(w.conn)
		w.giveBack()
	}
	if !w.lane.store.ample() || time.Since(w.since) > borrowed {
		w.giveBack()
	}
}

// connect gets the worker a connection unless it has one.
func (w *worker) connect(ctx context.Context) (err error) {
	if w.conn != nil {
		return nil
	}
	w.conn, err = pgpool.Conn(ctx, w.lane.store.db)
	w.since = time.Now()
	return err
}

// giveBack gives the worker's connection back to the pool.
func (w *worker) giveBack() {
	if w.conn != nil {
		_ = w.conn.Close() // ErrConnDone if it was retired or discarded
		w.conn = nil
	}
}

// ample reports whether the pool has connections enough that the workers may keep some
// between their statements.
func (s *Store) ample() bool {
	limit := pgpool.Limit(s.db)
	if limit <= 0 || limit >= amplePool {
		return true
	}
	s.small.Do(func() {
		s.set.Log.Warn("interlock: the pool of connections for the locks is small: callers that hold some of them can keep "+
			"the locks from being renewed and released; "+pgpool.Advice,
			"max_open_connections", limit, "ample", amplePool)
	})
	return false
}

// close lets requests that come now fail. Those in the queue fail, too; it waits for those
// under way.
func (l *lane) close() {
	l.mu.Lock()
	l.closed = true
	queued := l.queue
	l.queue = nil
	for _, w := range l.idle {
		l.busy++ // the worker gives it back when it sees that it is to end
		w.wake <- struct{}{}
	}
	l.idle = nil
	l.mu.Unlock()
	for _, r := range queued {
		r.finish(errShut)
	}
	l.ended.Wait()
}
