package rediswire

import (
	"context"
	"time"
)

const (
	// freeDials is how many dials to an address begin without a pause while no connection to it has
	// brought a byte: more than the connections that a store has to a server.
	freeDials = 16
	// dialPause is the time between two later dials. A server that is back is noticed within it.
	dialPause = 20 * time.Millisecond
)

// pace spaces the dials to an address that brings nothing: it refuses connections, or a proxy accepts and
// closes them. Each request of each caller would dial anew.
type pace struct {
	dials  int           // since a connection last brought a byte
	next   time.Time     // when the next dial may begin
	served chan struct{} // closed when a connection brings a byte: no dial waits any longer
}

// await returns when a dial to an address may begin.
func (d *dialer) await(ctx context.Context, addr string) error {
	now := time.Now()
	d.mu.Lock()
	p := d.paces[addr]
	if p == nil {
		for other, old := range d.paces { // addresses of servers that have left
			if now.Sub(old.next) > time.Hour {
				delete(d.paces, other)
			}
		}
		p = &pace{served: make(chan struct{})}
		d.paces[addr] = p
	}
	p.dials++
	if p.dials <= freeDials {
		p.next = now
		d.mu.Unlock()
		return nil
	}
	if p.next = p.next.Add(dialPause); p.next.Before(now) {
		p.next = now
	}
	wait := p.next.Sub(now)
	d.mu.Unlock()
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-p.served:
	case <-ctx.Done():
		// Its place is another's, or places that no dial takes would add up to a long wait.
		d.mu.Lock()
		p.next = p.next.Add(-dialPause)
		d.mu.Unlock()
		return ctx.Err()
	case <-d.ctx.Done():
		return errShut
	}
	return nil
}

// serves notes that a connection to an address has brought a byte.
func (d *dialer) serves(addr string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if p := d.paces[addr]; p != nil {
		close(p.served)
		delete(d.paces, addr)
	}
}
