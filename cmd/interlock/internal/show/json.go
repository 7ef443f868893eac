// Package show has the JSON that the tool prints of the contents of Redis.
package show

import (
	"encoding/json"
	"io"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/fleet"
	"github.com/interlock-go/interlock/internal/display"
)

// The types of this file are the tool's JSON. docs/tool.md describes them: names are not
// changed, and none is taken away. All texts from Redis are as [display.Text] shows them. Times
// are in UTC, and null where they are not known.

// Lock is a lock.
type Lock struct {
	Key     string   `json:"key"`
	Hash    string   `json:"hash"`
	Kind    string   `json:"kind"`
	Held    int      `json:"held"`
	Holders []Holder `json:"holders"`
	Waiters []Waiter `json:"waiters"`
	Fence   int64    `json:"fence"`
	KeptMS  int64    `json:"kept_left_ms"`
}

// Holder is a holder of a lock.
type Holder struct {
	Owner       string     `json:"owner"`
	Token       int64      `json:"token"`
	Since       *time.Time `json:"since"`
	AgeMS       int64      `json:"age_ms"`
	LeaseLeftMS int64      `json:"lease_left_ms"`
	WholeLease  bool       `json:"whole_lease"`
	Attentive   bool       `json:"attentive"`
	HandedOver  bool       `json:"handed_over"`
	Locker      Locker     `json:"locker"`
}

// Waiter is a locker that waits for a lock.
type Waiter struct {
	Place  bool   `json:"place"`
	Called bool   `json:"called"`
	Kept   bool   `json:"kept"`
	Locker Locker `json:"locker"`
}

// Locker is a process that takes locks.
type Locker struct {
	ID       string     `json:"id"`
	Listed   bool       `json:"listed"`
	Host     string     `json:"host"`
	PID      int        `json:"pid"`
	Service  string     `json:"service"`
	Version  string     `json:"version"`
	Started  *time.Time `json:"started"`
	Seen     *time.Time `json:"seen"`
	QuietMS  int64      `json:"quiet_ms"`
	Renews   string     `json:"renews"`
	Protocol int        `json:"protocol"`
}

// Message is a message of run while it runs a command.
type Message struct {
	Time    time.Time `json:"time"`
	Key     string    `json:"key"`
	Message string    `json:"message"`
}

// Report has the findings of doctor.
type Report struct {
	Safe          bool           `json:"safe"`
	Servers       []Server       `json:"servers"`
	ClockSpreadMS float64        `json:"clock_spread_ms"`
	Unsafe        []string       `json:"unsafe"`
	Notes         []string       `json:"notes"`
	User          string         `json:"user"`
	Tried         bool           `json:"tried"`
	Missing       []MissingRight `json:"missing"`
}

// Server is one server of a report.
type Server struct {
	Addr        string  `json:"addr"`
	Role        string  `json:"role"`
	Name        string  `json:"name"`
	Version     string  `json:"version"`
	Policy      string  `json:"policy"`
	AheadMS     float64 `json:"ahead_ms"`
	RoundTripMS float64 `json:"round_trip_ms"`
	SlowestMS   float64 `json:"slowest_ms"`
	Error       string  `json:"error"`
}

// MissingRight is a right that a Redis user lacks.
type MissingRight struct {
	For   string `json:"for"`
	Right string `json:"right"`
}

// Record is an idempotency record.
type Record struct {
	ID         string `json:"id"`
	State      string `json:"state"`
	Generation int64  `json:"generation"`
	Marked     bool   `json:"marked"`
	LeaseMS    int64  `json:"lease_left_ms"`
	KeptMS     int64  `json:"kept_ms"`
	Protocol   string `json:"protocol"`
	Status     int    `json:"status"`
	Size       int    `json:"size"`
	Sealed     bool   `json:"sealed"`
	Downstream string `json:"downstream_key"`
	EndedMS    int64  `json:"ended_ms"`
	Cursor     string `json:"cursor"`
	Step       string `json:"last_step"`
	UnderWay   string `json:"step_under_way"`
	StepKey    string `json:"step_downstream_key"` // of the step under way
}

// Run is the last run of a command, and whether a run has succeeded in this period: "done", "running" or
// "missing", and empty if that was not asked.
type Run struct {
	Key    string     `json:"key"`
	Began  *time.Time `json:"began"`
	Ended  *time.Time `json:"ended"`
	Status int        `json:"status"`
	Host   string     `json:"host"`
	PID    int        `json:"pid"`
	Token  int64      `json:"token"`
	Period string     `json:"period"`
}

// Result is the result of release, wait, idem resolve and idem forget.
type Result struct {
	Key    string  `json:"key"`
	Result string  `json:"result"`
	Holder *Holder `json:"holder,omitempty"`
}

// LockOf makes the JSON of a lock.
func LockOf(l fleet.Lock) Lock {
	j := Lock{Key: display.Text(l.Key), Hash: core.Hashed(l.Key).Hash(), Kind: l.Kind, Held: l.Held, Holders: []Holder{}, Waiters: []Waiter{}, Fence: l.Fence, KeptMS: keptMS(l.Kept)}
	for _, h := range l.Holders {
		j.Holders = append(j.Holders, HolderOf(h))
	}
	for _, w := range l.Waiters {
		j.Waiters = append(j.Waiters, Waiter{w.Place, w.Called, w.Kept, LockerOf(w.Locker)})
	}
	return j
}

// HolderOf makes the JSON of a holder.
func HolderOf(h fleet.Holder) Holder {
	left := h.Left.Milliseconds()
	if h.Left < 0 {
		left = -1
	}
	return Holder{
		Owner: display.Text(h.Owner), Token: h.Token, Since: timeOf(h.Since), AgeMS: h.Age.Milliseconds(), LeaseLeftMS: left, WholeLease: h.Whole,
		Attentive: h.Attentive, HandedOver: h.HandedOver, Locker: LockerOf(h.Locker),
	}
}

// LockerOf makes the JSON of a locker.
func LockerOf(l fleet.Locker) Locker {
	return Locker{
		ID: display.Text(l.ID), Listed: l.Listed, Host: display.Text(l.Host), PID: l.PID, Service: display.Text(l.Service), Version: display.Text(l.Version),
		Started: timeOf(l.Started), Seen: timeOf(l.Seen), QuietMS: l.Quiet.Milliseconds(), Renews: l.Renews(), Protocol: l.Protocol,
	}
}

// ReportOf makes the JSON of a report.
func ReportOf(r fleet.Report) Report {
	j := Report{
		Safe: r.Safe(), Servers: []Server{}, ClockSpreadMS: ms(r.ClockSpread), Unsafe: []string{}, Notes: []string{}, User: display.Text(r.User),
		Tried: r.Tried, Missing: []MissingRight{},
	}
	for _, s := range r.Servers {
		server := Server{
			Addr: display.Text(s.Addr), Role: s.Role, Name: s.Name, Version: display.Text(s.Version), Policy: display.Text(s.Policy),
			AheadMS: ms(s.Ahead), RoundTripMS: ms(s.RoundTrip), SlowestMS: ms(s.Slowest),
		}
		if s.Err != nil {
			server.Error = display.Text(s.Err.Error())
		}
		j.Servers = append(j.Servers, server)
	}
	for _, text := range r.Unsafe {
		j.Unsafe = append(j.Unsafe, display.Text(text))
	}
	for _, text := range r.Notes {
		j.Notes = append(j.Notes, display.Text(text))
	}
	for _, m := range r.Missing {
		j.Missing = append(j.Missing, MissingRight{m.For, display.Text(m.Right)})
	}
	return j
}

// RecordOf makes the JSON of a record. steps are the steps of idempotency.DownstreamKey.
func RecordOf(r fleet.Record, steps []string) Record {
	return Record{
		ID: r.ID, State: r.State, Generation: r.Generation, Marked: r.Marked, LeaseMS: r.Lease.Milliseconds(),
		KeptMS: r.Kept.Milliseconds(), Protocol: display.Text(r.Protocol), Status: r.Status, Size: r.Size, Sealed: r.Sealed,
		Downstream: r.DownstreamKey(steps...), EndedMS: r.Ended.Milliseconds(), Cursor: display.Text(r.Cursor),
		Step: display.Text(r.Step), UnderWay: display.Text(r.StepUnderWay), StepKey: StepKey(r),
	}
}

// StepKey is the downstream key of the step under way; empty if there is none.
func StepKey(r fleet.Record) string {
	if r.StepUnderWay == "" {
		return ""
	}
	return r.DownstreamKey(r.StepUnderWay)
}

func timeOf(t time.Time) *time.Time {
	if t.IsZero() || t.Year() > 9999 { // JSON has no later year
		return nil
	}
	t = t.UTC()
	return &t
}

// keptMS is not 0 for a lock that is kept.
func keptMS(d time.Duration) int64 { return (d + time.Millisecond - 1).Milliseconds() }

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// JSON writes a value in one line.
func JSON(w io.Writer, v any) error { return json.NewEncoder(w).Encode(v) }
