package pgxstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

var (
	// errDeaf says that the listener did not receive its own message, on a connection that
	// has never delivered a message.
	errDeaf = errors.New("the listener does not hear its own message")
	// errLost says the same of a connection that has delivered one.
	errLost = errors.New("the listener does not hear its own message any more")
	// errUnsent says that the message could not be sent.
	errUnsent = errors.New("the listener could not send its own message")
)

// subscription is one call of Listen.
type subscription struct {
	*Listener
	channel string
	hear    func(payload string)
	state   func(listening bool)

	told, listening bool // whether state was called, and its last argument
	complained      bool // the log says that it does not listen
	deaf            int  // connections in a row that delivered nothing
}

// tell tells the caller whether the listener receives notifications, if that has changed.
func (s *subscription) tell(listening bool) {
	if s.told && s.listening == listening {
		return
	}
	s.told, s.listening = true, listening
	s.state(listening)
}

// failed notes and logs the end of a connection.
func (s *subscription) failed(err error) {
	s.tell(false)
	if !errors.Is(err, errDeaf) {
		s.deaf = 0
	}
	switch {
	case errors.Is(err, errDeaf):
		if s.deaf++; s.deaf < 2 {
			return // a busy machine can be late, once
		}
		s.complained = true
		s.said.Do(func() {
			s.log.warn("interlock: LISTEN succeeds and hears nothing, as behind PgBouncer in transaction mode: "+
				"waiting requests ask from time to time. Give the listener a pool that connects to PostgreSQL itself",
				"channel", s.channel)
		})
	case !s.complained:
		s.complained = true
		s.log.warn("interlock: not listening for notifications: waiting requests ask from time to time",
			"channel", s.channel, "error", err)
	}
}

// run listens on one connection until it breaks.
func (s *subscription) run(ctx context.Context) error {
	conn, err := s.connect(ctx)
	if err != nil {
		return fmt.Errorf("connecting: %w", err)
	}
	defer disconnect(ctx, conn)

	// The listener proves itself on a channel that no other process listens to. Where the
	// connection is shared (a pooler), other clients hear nothing of it either.
	probe := "interlock_probe_" + strings.ToLower(rand.Text())
	if err := execute(ctx, conn, "LISTEN "+probe); err != nil {
		return err
	}
	if err := s.prove(ctx, conn, probe); err != nil {
		return err
	}
	// From here the session is known to be this connection's alone, so its settings
	// can be changed. idle_session_timeout exists since PostgreSQL 14.
	if err := execute(ctx, conn, "LISTEN "+pgx.Identifier{s.channel}.Sanitize()+
		"; SELECT set_config(name, '0', false) FROM pg_settings WHERE name = 'idle_session_timeout'"); err != nil {
		return err
	}
	if s.complained {
		s.complained = false
		s.log.info("interlock: listening for notifications again", "channel", s.channel)
	}
	s.deaf = 0
	s.tell(true)
	for {
		switch n, err := wait(ctx, conn, s.check); {
		case err != nil:
			return err
		case n != nil:
			s.heard(n)
			continue
		}
		err := s.prove(ctx, conn, probe)
		if errors.Is(err, errUnsent) {
			// Perhaps there is no connection to be had, and this one is well.
			err = execute(ctx, conn, "")
		}
		switch {
		case errors.Is(err, errDeaf):
			return errLost
		case err != nil:
			return err
		}
	}
}

// prove has the listener send itself a message, and waits for it. Notifications that come
// meanwhile are received as ever.
func (s *subscription) prove(ctx context.Context, conn *pgx.Conn, probe string) error {
	token := rand.Text()
	hearing, stop := context.WithCancel(ctx)
	defer stop()
	sending, giveUp := context.WithCancel(ctx)
	defer giveUp()
	var unsent error
	sent := make(chan struct{}) // closed when the sender has ended
	go func() {
		defer close(sent)
		defer stop()
		if unsent = s.notify(sending, "NOTIFY "+probe+", '"+token+"'"); unsent == nil {
			timer := time.NewTimer(proofWait)
			defer timer.Stop()
			select {
			case <-timer.C:
			case <-hearing.Done(): // received, most likely
			}
		}
	}()
	for {
		n, err := conn.WaitForNotification(hearing)
		switch {
		case n != nil && n.Channel == probe && n.Payload == token:
			stop()
			<-sent
			return nil
		case n != nil:
			s.heard(n)
			continue
		}
		stop()
		if conn.IsClosed() {
			giveUp() // its message would prove nothing any more
		}
		<-sent
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case conn.IsClosed():
			return err
		case unsent != nil:
			return fmt.Errorf("%w: %w", errUnsent, unsent)
		}
		return errDeaf
	}
}

// wait waits for a notification for as long as d, and returns nil if there was none.
func wait(ctx context.Context, conn *pgx.Conn, d time.Duration) (*pgconn.Notification, error) {
	waiting, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	n, err := conn.WaitForNotification(waiting)
	switch {
	case n != nil:
		return n, nil
	case ctx.Err() == nil && waiting.Err() != nil && !conn.IsClosed():
		return nil, nil
	}
	return nil, err
}

// heard passes a notification on to the caller, unless it is the listener's own.
func (s *subscription) heard(n *pgconn.Notification) {
	if n.Channel == s.channel {
		s.hear(n.Payload)
	}
}
