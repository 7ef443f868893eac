package rediswire

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core/driver"
)

// scanCount is how many keys one SCAN looks at: a server is kept from other requests
// for some microseconds only.
const scanCount = 100

// defaultRate is how many keys a second a list looks at.
const defaultRate = 20_000

// Position is a place in a scan: the page that a cursor of a master returns, and a name in it.
type Position struct {
	master *redis.Client
	server string // the address of a position that was read from a text
	cursor uint64
	id     string
}

func (p Position) addr() string { return p.master.Options().Addr }

// Of is the position of a name in the page, as a text.
func (p Position) Of(id string) string { return fmt.Sprintf("%s/%d/%s", p.addr(), p.cursor, id) }

// Passed reports whether a scan that goes on after a position has passed a name in the page already.
func (p Position) Passed(last Position, id string) bool {
	return p.cursor == last.cursor && p.addr() == last.server && id <= last.id
}

// ReadPosition is the reverse of [Position.Of]. The empty text is the beginning.
func ReadPosition(text string) (p Position, err error) {
	if text == "" {
		return p, nil
	}
	rest, id, ok := cutLast(text)
	server, number, more := cutLast(rest)
	p.server, p.id = server, id
	if p.cursor, err = strconv.ParseUint(number, 10, 64); err != nil || !ok || !more {
		return p, fmt.Errorf("%w: the cursor %q: take it from the list that ended with it", driver.ErrConfig, text)
	}
	return p, nil
}

// cutLast cuts a text at its last slash.
func cutLast(text string) (before, after string, ok bool) {
	i := strings.LastIndexByte(text, '/')
	if i < 0 {
		return text, "", false
	}
	return text[:i], text[i+1:], true
}

// Scan goes through the names of hashes that fit a pattern, page by page, on each master, from a
// position on. page returns whether to go on, and an error, which ends the scan of that master. Scan returns the
// first error, of several masters after it has gone through all of them.
func (s *Store) Scan(
	ctx context.Context, pattern string, from Position, page func(names []string, at Position) (more bool, err error),
) error {
	masters, err := s.Masters(ctx)
	if err != nil {
		return Wrap(err)
	}
	var failed error
	for _, master := range masters {
		begin := Position{master: master}
		if from.server > begin.addr() {
			continue // masters are in the order of their addresses
		}
		if from.server == begin.addr() {
			begin.cursor = from.cursor
		}
		more, err := s.scanMaster(ctx, begin, pattern, page)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil && len(masters) == 1:
			return err
		case err != nil:
			failed = cmp.Or(failed, fmt.Errorf("%w: %s: %w", driver.ErrIncomplete, master.Options().Addr, err))
		case !more:
			return nil
		}
	}
	return failed
}

// scanMaster is Scan on one master.
func (s *Store) scanMaster(
	ctx context.Context, at Position, pattern string, page func([]string, Position) (bool, error),
) (more bool, err error) {
	pause := time.Duration(scanCount) * time.Second / time.Duration(s.rate)
	next := time.Now()
	for {
		if err := until(ctx, next); err != nil {
			return true, err
		}
		next = time.Now().Add(pause)
		var names []string
		var cursor uint64
		names, cursor, err = nextPage(ctx, at, pattern)
		if err != nil {
			return true, Wrap(err)
		}
		slices.Sort(names)
		if names = slices.Compact(names); len(names) > 0 {
			if more, err := page(names, at); err != nil || !more {
				return more, err
			}
		}
		if at.cursor = cursor; cursor == 0 {
			return true, nil
		}
	}
}

// nextPage reads a page of names.
func nextPage(ctx context.Context, at Position, pattern string) ([]string, uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	return at.master.ScanType(ctx, at.cursor, pattern, scanCount, "hash").Result()
}

// until waits for a time, or returns what ended ctx.
func until(ctx context.Context, at time.Time) error {
	pause := time.Until(at)
	if pause <= 0 {
		return context.Cause(ctx)
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Masters returns a client for each master, in the order of their addresses.
func (s *Store) Masters(ctx context.Context) ([]*redis.Client, error) {
	switch c := s.rdb.(type) {
	case *redis.Client:
		return []*redis.Client{c}, nil
	case *redis.ClusterClient:
		var mu sync.Mutex
		var all []*redis.Client
		err := c.ForEachMaster(ctx, func(_ context.Context, node *redis.Client) error {
			mu.Lock()
			defer mu.Unlock()
			all = append(all, node)
			return nil
		})
		slices.SortFunc(all, func(a, b *redis.Client) int { return cmp.Compare(a.Options().Addr, b.Options().Addr) })
		return all, err
	}
	return nil, nil // Open takes no other client
}
