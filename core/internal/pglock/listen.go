package pglock

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/interlock-go/interlock/core/internal/clock"
	"github.com/interlock-go/interlock/core/internal/ident"
)

// Listener hears what all processes that use the table announce.
type Listener interface {
	// Listen calls hear with each announcement, until ctx ends, and then returns. It calls
	// state(true) when it has begun to hear, also after a reconnect: the store then takes
	// it that messages were missed. It calls state(false) when it does not hear. It may also
	// return an error then, and is called again. Both functions return soon, and may be
	// called from any goroutine.
	Listen(ctx context.Context, hear func(payload string), state func(listening bool)) error
}

const (
	// proveEvery is how often a message of this process itself has to prove that
	// announcements are heard, while lockers wait; proveWithin is in what time. With a
	// pooler that gives each transaction another connection, LISTEN succeeds and hears
	// nothing.
	proveEvery  = 10 * time.Second
	proveWithin = 2 * time.Second

	// minRelisten and maxRelisten bound the pauses between two calls of a Listener.
	minRelisten = 100 * time.Millisecond
	maxRelisten = 10 * time.Second

	// proofWord begins a proof; no hash of a key has that form.
	proofWord = "proof"
)

// proof is the evidence that announcements are heard.
type proof struct {
	listens bool      // the Listener says that it hears
	holds   bool      // the last proof was heard
	nonce   string    // of the proof that was sent last; empty: it was heard
	sent    time.Time // when
	warned  bool      // that none was heard
	ways    clock.Trips
}

// listen keeps the Listener at work.
func (w *calls) listen() {
	s := w.store
	for pause := minRelisten; ; pause = min(2*pause, maxRelisten) {
		begin := time.Now()
		err := s.set.Listen.Listen(s.work.Life(), w.hear, w.listens)
		w.deaf()
		s.work.Failed("releases of locks in other processes are not heard, and found by looking", err)
		if time.Since(begin) > maxRelisten {
			pause = minRelisten
		}
		if !s.work.Sleep(pause, nil) {
			return
		}
	}
}

// listens takes the state of the Listener.
func (w *calls) listens(listening bool) {
	if !listening {
		w.deaf()
		return
	}
	w.mu.Lock()
	w.proof.listens, w.proof.sent = true, time.Time{}
	w.prove(time.Now())
	w.mu.Unlock()
	w.missed()
}

// deaf notes that nothing is heard any more.
func (w *calls) deaf() {
	w.mu.Lock()
	w.proof.listens, w.proof.nonce = false, ""
	held := w.fails()
	w.mu.Unlock()
	if held {
		w.missed()
	}
}

// fails notes that announcements do not reach this process, and has the poller look at all locks soon. It reports whether they
// did before. Called with w.mu held.
func (w *calls) fails() (held bool) {
	held, w.proof.holds = w.proof.holds, false
	now := time.Now()
	for _, t := range w.waits {
		w.soon(t, now)
	}
	return held
}

// missed tells the lockers of this process that calls may have been lost. What is told last is the state.
func (w *calls) missed() {
	w.telling.Lock()
	defer w.telling.Unlock()
	w.mu.Lock()
	reached := w.proof.holds
	w.mu.Unlock()
	w.lockers.Unsure(reached)
}

// prove sends a proof if it is time for one, and draws its conclusion from a proof that was not
// heard: it reports whether announcements were heard until now. Called with w.mu held.
func (w *calls) prove(now time.Time) (lost bool) {
	p := &w.proof
	if !p.listens {
		return false
	}
	age := now.Sub(p.sent)
	if p.nonce != "" && age > proveWithin && !p.sent.IsZero() {
		p.nonce = ""
		if lost = w.fails(); !p.warned {
			p.warned = true
			w.store.set.Log.Warn("interlock: LISTEN has succeeded, but announcements are not heard: is there a connection pooler " +
				"in transaction mode in between? Waiting lockers find by looking what is released in other processes")
		}
	}
	if age >= proveEvery {
		p.nonce, p.sent = ident.New(), now
		w.store.set.Announce(proofWord + " " + p.nonce)
	}
	return lost
}

// way is how long an announcement takes to this process at the least, with the way to the
// server; zero if announcements are not heard.
func (w *calls) way() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.proof.holds {
		return 0
	}
	return w.proof.ways.Least()
}

// hear takes a message: a proof; or the hash of a key, the id of the store that says so, the number
// of the calls, and the calls. There are none if it is not known when the lock was released.
func (w *calls) hear(payload string) {
	hash, rest, _ := strings.Cut(payload, " ")
	if hash == proofWord {
		w.proved(rest)
		return
	}
	from, rest, _ := strings.Cut(rest, " ")
	text, made, _ := strings.Cut(rest, " ")
	number, err := strconv.ParseInt(text, 10, 64)
	switch {
	case err != nil:
	case made == "": // also from this store: the release may have been carried out since
		w.unsure(hash)
	case from != w.id: // else the lockers here have been called
		for _, c := range readCalls(made) {
			w.hears(hash, "", number, c)
		}
	}
}

// proved takes a proof.
func (w *calls) proved(nonce string) {
	w.mu.Lock()
	p := &w.proof
	mine := nonce != "" && nonce == p.nonce
	news := mine && !p.holds
	if mine {
		p.ways.Note(time.Since(p.sent))
		p.nonce, p.warned, p.holds = "", false, true
	}
	w.mu.Unlock()
	if news {
		w.missed()
	}
}
