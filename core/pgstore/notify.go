package pgstore

import (
	"context"
	"sync"
	"time"
)

// notices are the announcements to send to other processes.
//
// An announcement is a courtesy: who waits looks from time to time as well. It is a
// separate statement, and no caller waits for it. NOTIFY fails at the commit if its queue
// is full, it fails without the right to pg_notify, and it waits for the commits of all
// others that announce something in the database.
type notices struct {
	mu      sync.Mutex
	waiting []string // payloads, to be sent with the next statement
	busy    bool     // a goroutine sends them
}

// notify has the listeners of all processes that use the tables hear a payload, if the store
// has one itself. It returns at once.
func (s *Store) notify(payload string) {
	if s.listener == nil {
		return
	}
	n := &s.notices
	n.mu.Lock()
	defer n.mu.Unlock()
	n.waiting = append(n.waiting, payload)
	if !n.busy {
		n.busy = s.work.Go(s.sendNotices)
	}
}

// take returns the next announcements. If there are none, the sender ends.
func (n *notices) take() (payloads []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	payloads, n.waiting = n.waiting, nil
	n.busy = len(payloads) > 0
	return payloads
}

// sendNotices sends announcements until there are none left.
func (s *Store) sendNotices() {
	n := &s.notices
	for payloads := n.take(); len(payloads) > 0; payloads = n.take() {
		var all array
		for _, p := range payloads {
			all.add(p)
		}
		_, err := s.try(s.work.Life(), time.Now().Add(s.timeout), func(ctx context.Context, q querier) error {
			var sent int64
			return q.QueryRowContext(ctx, s.text.Load().notify, all.text()).Scan(&sent)
		})
		if err != nil {
			s.work.Failed("NOTIFY has failed: processes that wait find late, by looking, "+
				"what was released and completed", err)
		}
	}
}

// channelText is an expression for the channel of the announcements. All processes that use
// the tables have the same, however they name the schema, and no others have it.
func (s *Store) channelText() string {
	return "(SELECT 'interlock_' || left(encode(sha256(convert_to(n.nspname || '." + s.prefix + "', 'UTF8')), 'hex'), 32)" +
		" FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE c.oid = '" + s.schema + s.prefix + "lock'::regclass)"
}

// channel asks for the channel of the announcements.
func (s *Store) channel(ctx context.Context) (name string, err error) {
	_, err = s.try(ctx, time.Now().Add(s.timeout), func(ctx context.Context, q querier) error {
		return q.QueryRowContext(ctx, s.text.Load().channel).Scan(&name)
	})
	return name, err
}
