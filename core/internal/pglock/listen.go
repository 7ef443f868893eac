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

	// proofWord begins a proof, wantedWord a hint about an attentive owner, and offerWord an offer; no hash of
	// a key has that form.
	proofWord  = "proof"
	wantedWord = "wanted"
	offerWord  = "offer"
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
func (w *watches) listen() {
	s := w.store
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { // not in the background: the store may be closed already
		select {
		case <-s.stop:
			cancel()
		case <-ctx.Done():
		}
	}()
	pause := minRelisten
	for {
		begin := time.Now()
		err := s.set.Listen.Listen(ctx, w.hear, w.listens)
		w.deaf()
		if s.closed() {
			return
		}
		s.failed("releases of locks in other processes are not heard, and found by looking", err)
		if time.Since(begin) > maxRelisten {
			pause = minRelisten
		}
		if !s.sleep(pause, nil) {
			return
		}
		pause = min(2*pause, maxRelisten)
	}
}

// listens takes the state of the Listener.
func (w *watches) listens(listening bool) {
	if !listening {
		w.deaf()
		return
	}
	w.do(func() {
		w.proof.listens, w.proof.sent = true, time.Time{}
		w.prove(time.Now())
		w.missed()
	})
}

// deaf notes that nothing is heard any more.
func (w *watches) deaf() {
	w.do(func() {
		w.proof.listens, w.proof.nonce = false, ""
		w.reaches(false)
		w.lookAll()
	})
}

// lookAll has the poller look at all topics soon. Called with w.mu held.
func (w *watches) lookAll() {
	now := time.Now()
	for _, t := range w.topics {
		w.soon(t, now)
	}
}

// prove sends a proof if it is time for one, and draws its conclusion from a proof that was not
// heard. Called with w.mu held.
func (w *watches) prove(now time.Time) {
	p := &w.proof
	if !p.listens {
		return
	}
	age := now.Sub(p.sent)
	if p.nonce != "" && age > proveWithin && !p.sent.IsZero() {
		p.nonce = ""
		if w.reaches(false); !p.warned {
			p.warned = true
			w.store.set.Log.Warn("interlock: LISTEN has succeeded, but announcements are not heard: is there a connection pooler " +
				"in transaction mode in between? Waiting lockers find by looking what is released in other processes")
		}
		w.lookAll()
	}
	if age < proveEvery {
		return
	}
	p.nonce, p.sent = ident.New(), now
	w.store.set.Announce(proofWord + " " + p.nonce)
}

// way is how long an announcement takes to this process at the least, with the way to the
// server; zero if announcements are not heard.
func (w *watches) way() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.proof.holds {
		return 0
	}
	return w.proof.ways.Least()
}

// hear takes a message: a proof, a hint, an offer, or the hash of a key, the id of the store that says so, the number
// of a call, 0 if that is not known, and the lockers that are called.
func (w *watches) hear(payload string) {
	word, rest, _ := strings.Cut(payload, " ")
	from, call, _ := strings.Cut(rest, " ")
	number, names, _ := strings.Cut(call, " ")
	switch word {
	case wantedWord:
		w.hint("", rest)
	case offerWord:
		w.heardOffer(rest)
	case proofWord:
		w.do(func() { w.proved(rest) })
	default:
		called, err := strconv.ParseInt(number, 10, 64)
		w.do(func() {
			switch {
			case err != nil:
			case called == 0: // also from this store: the release may have been carried out since
				w.unsure(word)
			case from != w.id: // else the lockers here have been told
				w.named("", word, called, names, "")
			}
		})
	}
}

// unsure wakes the watchers of a lock that was released, by the hash of its key. Called with w.mu held.
func (w *watches) unsure(hash string) {
	for key, t := range w.topics {
		if ident.Hash(key) == hash {
			w.tellAll(t)
		}
	}
}

// proved takes a proof. Called with w.mu held.
func (w *watches) proved(nonce string) {
	if nonce != "" && nonce == w.proof.nonce {
		w.proof.ways.Note(time.Since(w.proof.sent))
		w.proof.nonce, w.proof.warned = "", false
		w.reaches(true)
	}
}
