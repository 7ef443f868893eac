package keystate

import (
	"bytes"
	"fmt"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/interlock-go/interlock/core/driver"
)

// Row is the record of a lock that has an exclusive holder without [driver.Attentive], and exclusive
// callers in turn alone. A store may keep it in another form than the text of a record.
type Row struct {
	Owner   string         // empty: the lock is free
	Token   int64          // the last
	Ends    time.Time      // when the lease ends; of a free lock, when it became free
	Waiting driver.Waiters // the list; a free lock has been kept for its lockers since Ends
}

// Record returns the record.
func (v Row) Record() *Record {
	r := &Record{owner: v.Owner, token: v.Token, expires: v.Ends}
	r.SetWaiting(v.Waiting)
	if v.Owner == "" && len(r.waiting) > 0 {
		r.reserve(reservation{}, v.Ends)
	}
	return r
}

// Row returns the record in the other form, if that says as much. The record is not changed.
func (r *Record) Row(now time.Time) (v Row, ok bool) {
	c := r.Clone()
	c.At(now)
	_, attentive := driver.IsAttentive(c.owner)
	if attentive || len(c.places) > 0 || slices.ContainsFunc(c.waiting, func(w waiting) bool { return w.Place() }) {
		return Row{Token: c.token}, false
	}
	if !now.Before(c.barrier) {
		c.barrier = time.Time{}
	}
	if c.line.forgotten(now) {
		c.line.newest, c.line.since, c.line.came = 0, time.Time{}, nil
	}
	if !now.Before(c.line.until) {
		c.line.only = ""
	}
	v = Row{c.owner, c.token, c.expires, names(c.waiting)}
	mine, err := c.AppendText(nil)
	other, failed := v.Record().AppendText(nil)
	return v, err == nil && failed == nil && bytes.Equal(mine, other)
}

// Check returns an error that matches [driver.ErrConfig] for a request that makes no sense, or has a name
// that the text of a record cannot have.
func Check(req *driver.AcquireRequest) error {
	switch {
	case req.Kind > driver.Permit:
		return fmt.Errorf("%w: unknown Kind %d", driver.ErrConfig, req.Kind)
	case req.Kind == driver.Permit && req.AtMost < 1:
		return fmt.Errorf("%w: AtMost is %d: at least 1 owner must be allowed a permit", driver.ErrConfig, req.AtMost)
	case !utf8.ValidString(req.Owner + "," + string(req.Waiter) + "," + req.From):
		return fmt.Errorf("%w: owner %q, waiting locker %q, former owner %q: names are valid UTF-8", driver.ErrConfig, req.Owner, req.Waiter, req.From)
	}
	return nil
}
