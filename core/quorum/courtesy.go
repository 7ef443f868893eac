package quorum

import (
	"context"
	"sync"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

// The nodes keep a free lock for no locker: whoever asks first has it. A process that has released a lock would
// be the fastest, before the lockers that the nodes have called. So it does not ask for the lock for a
// moment, if others wait and it is not in line itself.
const (
	// courtesy is how long that is at most: the first of the others needs some round trips to ask.
	courtesy    = 5 * time.Millisecond / 2
	minCourtesy = courtesy / 5
)

// pauses are the keys that this process does not ask for at the moment.
type pauses struct {
	mu    sync.Mutex
	until map[string]time.Time
}

// after begins the pause after a release that took a time.
func (p *pauses) after(key string, took time.Duration) {
	pause := min(max(4*took, minCourtesy), courtesy)
	until := time.Now().Add(pause)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.until == nil {
		p.until = map[string]time.Time{}
	}
	p.until[key] = until
	time.AfterFunc(pause, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.until[key].Equal(until) {
			delete(p.until, key)
		}
	})
}

// wait returns when the pause for a key is over. It reports false if ctx has ended before.
func (p *pauses) wait(ctx context.Context, key string) bool {
	p.mu.Lock()
	until, pauses := p.until[key]
	p.mu.Unlock()
	if !pauses {
		return true
	}
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// leftUnsent is [Store.Acquire] for a caller that has left before anything was sent.
func leftUnsent(ask *driver.AcquireRequest) (driver.Reply, error) {
	go ask.Late(driver.Reply{}, driver.ErrNotReady)
	return driver.Reply{}, driver.ErrPending
}
