package idempotency

import "sync"

// drain counts what [Engine.Close] waits for: requests and jobs of the background.
type drain struct {
	mu      sync.Mutex
	n       int
	closing bool
	empty   chan struct{} // made by a Close that waits
}

// admit counts a request, unless the engine is closing.
func (d *drain) admit() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closing {
		return false
	}
	d.n++
	return true
}

// add counts a job.
func (d *drain) add() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.n++
}

// done says that one of those counted is.
func (d *drain) done() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.n--
	if d.n == 0 && d.empty != nil {
		close(d.empty)
		d.empty = nil
	}
}

// close refuses new requests.
func (d *drain) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closing = true
}

// wait returns a channel that is closed when nothing is left; nil if that is so now.
func (d *drain) wait() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.n > 0 && d.empty == nil {
		d.empty = make(chan struct{})
	}
	return d.empty
}
