package explore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/once"
)

// Message is a message of the broker of a run, which delivers it at least once: again after an error of
// [Service.Consumer], after the death of the process, and when the acknowledgement was lost.
type Message struct {
	// ID and Metadata are for the consumer. The broker drops no message for its ID.
	ID       string
	Metadata map[string]string
	Body     string
}

// delivery is a message on its way to a consumer.
type delivery struct {
	Message
	number int
	name   string // message 1
	cause  string // the request or message for which it was sent
	acked  bool   // it was carried out
	aside  bool   // its outcome is unknown, or it never can be carried out
	last   error
}

// Send sends a message to [Service.Consumer]. It is a call to the outside: the process can die before and after it, and the
// answer of the broker can be lost. An error matches [ErrLost].
func (p *Process) Send(ctx context.Context, m Message) error {
	cause := causeOf(ctx)
	return p.call(cause, "sending of a message", func() error {
		p.world.accept(cause, m)
		return nil
	})
}

// accept stores a message in the broker, and delivers it.
func (w *World) accept(cause string, m Message) *delivery {
	w.mu.Lock()
	w.messages++
	d := &delivery{Message: m, number: w.messages, name: fmt.Sprintf("message %d", w.messages), cause: cause}
	if cause == "" {
		d.cause = d.name
	}
	w.delivered = append(w.delivered, d)
	ended := w.ended
	w.mu.Unlock()
	if !ended && w.service.Consumer != nil {
		w.spawn(func() { w.deliver(d) })
	}
	return d
}

// publish sends the messages of the service.
func (w *World) publish() {
	w.spawn(func() {
		all := w.service.Messages
		for i := range all {
			if w.setting == backward {
				i = len(all) - 1 - i
			}
			d := w.accept("", all[i])
			for begun := time.Now(); w.setting != together && time.Since(begun) < w.service.Still; time.Sleep(time.Second) {
				w.mu.Lock()
				ended := d.acked || d.aside
				w.mu.Unlock()
				if ended {
					break
				}
			}
		}
	})
}

// deliver delivers a message until it is acknowledged.
func (w *World) deliver(d *delivery) {
	time.Sleep(time.Millisecond + time.Duration(2*d.number)*time.Microsecond) // messages, and their copies, come in one order
	w.mu.Lock()
	f, faulty := w.inject(place{cause: d.cause, label: d.name, kind: message})
	w.mu.Unlock()
	switch {
	case faulty && f.action == late:
		time.Sleep(w.service.Still)
	case faulty:
		w.spawn(func() {
			time.Sleep(time.Microsecond)
			w.attempts(d, d.number+1)
		})
	}
	w.attempts(d, d.number)
}

func (w *World) attempts(d *delivery, first int) {
	wait, until := time.Second, time.Now().Add(horizon)
	for try := first; time.Now().Before(until); try++ {
		err := w.consume(d, w.pick(try))
		w.mu.Lock()
		switch {
		case err == nil:
			d.acked = true
		case permanent(err):
			d.aside = true
		}
		d.last = err
		w.mu.Unlock()
		if err == nil || permanent(err) {
			return
		}
		time.Sleep(wait)
		wait = min(2*wait, 10*time.Second)
	}
}

// permanent reports whether a consumer puts a message aside: its outcome is unknown, or no later try changes it.
func permanent(err error) bool {
	return once.Permanent(err) || errors.Is(err, idempotency.ErrOutcomeUnknown)
}

// consume has a process carry out a message, once. An error asks for another delivery.
func (w *World) consume(d *delivery, p *Process) error {
	done := make(chan error, 1)
	go func() {
		defer func() {
			if v := recover(); v != nil {
				w.note(p.name, d.cause, "", fmt.Sprint("panic: ", v))
				done <- errors.New("explore: the consumer panicked")
			}
		}()
		err := p.consumer(p.serving(d.cause), d.Message)
		if err != nil {
			w.note(p.name, d.cause, d.name, "failed: "+err.Error())
			done <- err
			return
		}
		done <- p.visit(d.cause, "acknowledgement of "+d.name, answer).enter()
	}()
	limit := time.NewTimer(w.service.Still)
	defer limit.Stop()
	select {
	case err := <-done:
		return err
	case <-p.died:
	case <-limit.C:
	}
	return ErrLost
}
