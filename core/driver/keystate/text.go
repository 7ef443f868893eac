package keystate

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

// version is the version of the text of a record. A text of another version is refused, because
// a rule that this version does not know may depend on it.
const version = 1

// text is a record as JSON. Instants are in µs since 1970, durations in µs. A field without a value
// is left out.
type text struct {
	Version int           `json:"v"`
	Owner   string        `json:"owner,omitempty"`
	Token   int64         `json:"token,omitempty"`
	Ends    int64         `json:"ends,omitempty"`
	Places  []placeText   `json:"places,omitempty"`
	Waiting []waitingText `json:"waiting,omitempty"`
	Barrier int64         `json:"barrier,omitempty"`
	Kept    *keptText     `json:"kept,omitempty"`
	Newest  *newestText   `json:"newest,omitempty"`
	Only    *untilText    `json:"only,omitempty"`
}

type placeText struct {
	Owner string `json:"owner"`
	Token int64  `json:"token"`
	Ends  int64  `json:"ends"`
}

type waitingText struct {
	Name   string `json:"name"` // as lists have it
	Called bool   `json:"called,omitempty"`
}

type keptText struct {
	Since int64  `json:"since"`
	Lasts int64  `json:"lasts"`
	Offer string `json:"offer,omitempty"`
	Token int64  `json:"token,omitempty"`
}

type newestText struct {
	Number int64      `json:"number"`
	Since  int64      `json:"since"`
	Came   []cameText `json:"came,omitempty"`
}

type cameText struct {
	By     string `json:"by"`
	Order  int64  `json:"order"`
	Number int64  `json:"number"`
}

type untilText struct {
	ID    string `json:"id"`
	Until int64  `json:"until"`
}

// AppendText implements [encoding.TextAppender]: it appends the record as JSON, which
// [Record.UnmarshalText] reads. Instants are cut to µs, and the names of owners and lockers must be
// UTF-8.
func (r *Record) AppendText(b []byte) ([]byte, error) {
	t := text{
		Version: version, Owner: r.owner, Token: r.token, Ends: micros(r.expires), Barrier: micros(r.barrier),
	}
	for _, p := range r.places {
		t.Places = append(t.Places, placeText{p.owner, p.token, micros(p.ends)})
	}
	for _, w := range r.waiting {
		t.Waiting = append(t.Waiting, waitingText{string(w.Waiter), w.called})
	}
	if v := r.reserved; v.lasts > 0 {
		t.Kept = &keptText{micros(v.since), v.lasts.Microseconds(), v.offer, v.token}
	}
	if r.line.newest != 0 {
		t.Newest = &newestText{Number: r.line.newest, Since: micros(r.line.since)}
		for _, a := range r.line.came {
			t.Newest.Came = append(t.Newest.Came, cameText{a.locker, a.order, a.number})
		}
	}
	if r.line.only != "" {
		t.Only = &untilText{r.line.only, micros(r.line.until)}
	}
	fields, err := json.Marshal(t)
	if err != nil {
		return b, fmt.Errorf("interlock: the record of a lock as text: %w", err)
	}
	if len(r.unknown) == 0 {
		return append(b, fields...), nil
	}
	more, err := json.Marshal(r.unknown)
	if err != nil {
		return b, fmt.Errorf("interlock: the unknown fields of the record of a lock as text: %w", err)
	}
	b = append(append(b, fields[:len(fields)-1]...), ',')
	return append(b, more[1:]...), nil
}

// UnmarshalText implements [encoding.TextUnmarshaler]. Fields that this version does not know are
// kept, and appended again by [Record.AppendText]. The error of a text that is no record, or a
// record of another version, matches [driver.ErrKeyOccupied]; then the record is unchanged.
func (r *Record) UnmarshalText(b []byte) error {
	var t text
	if err := json.Unmarshal(b, &t); err != nil {
		return fmt.Errorf("%w: %w", driver.ErrKeyOccupied, err)
	}
	if t.Version != version {
		return fmt.Errorf("%w: a record of version %d; this module version reads version %d", driver.ErrKeyOccupied, t.Version, version)
	}
	read := Record{owner: t.Owner, token: t.Token, expires: instant(t.Ends), barrier: instant(t.Barrier), unknown: unknown(b)}
	for _, p := range t.Places {
		read.places = append(read.places, place{p.Owner, p.Token, instant(p.Ends)})
	}
	for _, w := range t.Waiting {
		read.waiting = append(read.waiting, waiting{driver.Waiter(w.Name), w.Called})
	}
	if v := t.Kept; v != nil {
		lasts := time.Duration(min(max(v.Lasts, 0), math.MaxInt64/int64(time.Microsecond))) * time.Microsecond
		read.reserved = reservation{instant(v.Since), lasts, v.Offer, v.Token}
	}
	if n := t.Newest; n != nil {
		read.line.newest, read.line.since = n.Number, instant(n.Since)
		for _, a := range n.Came {
			read.line.came = append(read.line.came, arrival{a.By, a.Order, a.Number})
		}
	}
	if o := t.Only; o != nil {
		read.line.only, read.line.until = o.ID, instant(o.Until)
	}
	*r = read
	return nil
}

// unknown returns the fields of a text that this version does not know; nil if there are none.
func unknown(b []byte) map[string]json.RawMessage {
	var fields map[string]json.RawMessage
	if json.Unmarshal(b, &fields) != nil {
		return nil
	}
	maps.DeleteFunc(fields, func(name string, _ json.RawMessage) bool {
		return slices.ContainsFunc(known, func(k string) bool { return strings.EqualFold(k, name) })
	})
	if len(fields) == 0 {
		return nil
	}
	return fields
}

// known are the names of the fields of [text].
var known = func() (names []string) {
	for f := range reflect.TypeFor[text]().Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		names = append(names, name)
	}
	return names
}()

// micros is an instant in µs since 1970; 0 if there is none.
func micros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

// instant is the reverse of [micros].
func instant(us int64) time.Time {
	if us == 0 {
		return time.Time{}
	}
	return time.UnixMicro(us)
}
