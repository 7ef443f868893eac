package pglock

import (
	_ "embed"
	"strconv"
	"strings"
	"time"
)

//go:embed sql/acquire.sql
var acquireText string

//go:embed sql/renew.sql
var renewText string

//go:embed sql/release.sql
var releaseText string

//go:embed sql/look.sql
var lookText string

//go:embed sql/sweep.sql
var sweepText string

// statements are the texts that a store sends.
type statements struct {
	of          [releases + 1]string // by the kind of the requests
	look, sweep string
}

func statementsFor(table string) statements {
	text := func(source string) string {
		var b strings.Builder
		for line := range strings.Lines(source) {
			if line = strings.TrimSpace(line); !strings.HasPrefix(line, "--") {
				b.WriteString(line)
				b.WriteByte('\n')
			}
		}
		return strings.ReplaceAll(b.String(), DefaultTable, table)
	}
	return statements{
		of:   [...]string{acquires: text(acquireText), renews: text(renewText), releases: text(releaseText)},
		look: text(lookText), sweep: text(sweepText),
	}
}

// arguments are those of the statement for some requests of one kind, which have a key
// each. Arrays are texts in PostgreSQL's form: database/sql has no form for them that all
// drivers know.
func (s *Store) arguments(batch []*request) []any {
	column := func(field func(*request) string) string { return textArray(batch, field) }
	key := bytesArray(batch, func(r *request) string { return r.key })
	owner := column(func(r *request) string { return r.owner })
	waiter := func() string { return column(func(r *request) string { return r.waiter }) }
	bound := strconv.FormatInt(max(s.set.Timeout.Milliseconds()/4, 1), 10)
	switch batch[0].kind {
	case acquires:
		return []any{
			key, owner, numberArray(batch, ttl), waiter(), column(func(r *request) string { return r.rest }),
			bound, s.watches.turn().Microseconds(),
		}
	case renews:
		return []any{key, owner, numberArray(batch, ttl), bound}
	default: // releases
		hash, channel := "{}", s.watches.channel
		if channel != "" {
			hash = column(func(r *request) string { return hashOf(r.key) })
		}
		return []any{key, owner, numberArray(batch, func(r *request) int64 { return r.token }), waiter(), hash, bound, channel}
	}
}

// ttl is the lease in µs. It rounds up: a lease is never shorter than its holder thinks.
func ttl(r *request) int64 { return int64((r.ttl + time.Microsecond - 1) / time.Microsecond) }

func textArray(batch []*request, field func(*request) string) string {
	b := make([]byte, 0, 48*len(batch)+2)
	for _, r := range batch {
		b = append(b, ',', '"')
		s := field(r)
		for i := range len(s) {
			if s[i] == '"' || s[i] == '\\' {
				b = append(b, '\\')
			}
			b = append(b, s[i])
		}
		b = append(b, '"')
	}
	return braced(b)
}

func bytesArray(batch []*request, field func(*request) string) string {
	const digits = "0123456789abcdef"
	b := make([]byte, 0, 64*len(batch)+2)
	for _, r := range batch {
		b = append(b, `,"\\x`...)
		s := field(r)
		for i := range len(s) {
			b = append(b, digits[s[i]>>4], digits[s[i]&15])
		}
		b = append(b, '"')
	}
	return braced(b)
}

func numberArray(batch []*request, field func(*request) int64) string {
	b := make([]byte, 0, 18*len(batch)+2)
	for _, r := range batch {
		b = strconv.AppendInt(append(b, ','), field(r), 10)
	}
	return braced(b)
}

// braced makes an array of elements that begin with a comma each.
func braced(b []byte) string {
	b[0] = '{'
	return string(append(b, '}'))
}
