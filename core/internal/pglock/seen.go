package pglock

import (
	"crypto/sha256"
	"encoding/hex"
	"sync"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/driver/keystate"
)

// row is the row of a lock, as it was seen last.
type row struct {
	text   string           // of the record; empty: there is no row
	record *keystate.Record // that the text says, and that is not changed; nil: it has not been read
	at     time.Time        // when it was so, by the server's clock
	called int64            // the number of the last calls
	calls  string           // those; see callsText
	// since has when the lockers that take offers were first seen in the list.
	since map[string]time.Time
}

// read returns a copy of the record.
func (r *row) read() (*keystate.Record, error) {
	if r.record == nil {
		rec := new(keystate.Record)
		if r.text != "" {
			if err := rec.UnmarshalText([]byte(r.text)); err != nil {
				return nil, err
			}
		}
		r.record = rec
	}
	return r.record.Clone(), nil
}

// version is what version.sql makes of the row.
func (r row) version() string {
	if r.text == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(r.text))
	return hex.EncodeToString(sum[:])
}

// listed returns since when the lockers of a list that take offers are known to be in it.
func (r row) listed(list driver.Waiters, now time.Time) (since map[string]time.Time) {
	for w := range list.All() {
		if !w.TakesOffers() {
			continue
		}
		if since == nil {
			since = make(map[string]time.Time)
		}
		if since[w.ID()] = now; !r.since[w.ID()].IsZero() {
			since[w.ID()] = r.since[w.ID()]
		}
	}
	return since
}

// generation is how many bytes a generation of a [recent] has at most.
const generation = 2 << 20

// recent has what was put last under some names: at least one generation, and at most two.
type recent[V any] struct {
	mu         sync.Mutex
	young, old map[string]V
	size       int // of young, in bytes
}

func (r *recent[V]) get(name string) (v V, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if v, ok = r.young[name]; !ok {
		v, ok = r.old[name]
	}
	return v, ok
}

// put notes a value of some bytes.
func (r *recent[V]) put(name string, v V, size int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.size += len(name) + size + 64; r.size > generation || r.young == nil {
		r.young, r.old, r.size = map[string]V{}, r.young, 0
	}
	r.young[name] = v
}

// serverClock is an estimate of the server's clock. It lags that by the way of an answer, of the quickest of the last
// seconds.
type serverClock struct {
	begin time.Time // of the store; set before it is used

	mu    sync.Mutex
	ahead time.Duration // the server's time since 1970, less the time since begin
	since time.Duration // begin; zero: no answer has come
}

const (
	// agree is how far the clocks of server and process may be apart at the first request, so that its guess
	// holds.
	agree = 5 * time.Millisecond
	// aging is for how long an estimate is kept. Two clocks drift apart.
	aging = 10 * time.Second
)

// saw takes the server's clock from an answer to a statement that was sent at an instant. An earlier estimate
// stays if it is nearer, and can still be true.
func (c *serverClock) saw(server, sent time.Time) {
	now := time.Since(c.begin)
	least := time.Duration(server.UnixNano()) - now
	most := least + time.Since(sent)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.since == 0 || now-c.since > aging || c.ahead < least || c.ahead > most {
		c.ahead, c.since = least, now
	}
}

func (c *serverClock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.since == 0 {
		return time.Now().Add(-agree).Truncate(time.Microsecond)
	}
	return time.Unix(0, int64(time.Since(c.begin)+c.ahead)).Truncate(time.Microsecond)
}
