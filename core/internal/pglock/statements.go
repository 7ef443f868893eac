package pglock

import (
	"context"
	_ "embed"
	"strconv"
	"strings"

	"github.com/interlock-go/interlock/core/internal/pgpool"
)

//go:embed sql/version.sql
var versionText string

//go:embed sql/one.sql
var oneText string

//go:embed sql/lock.sql
var lockText string

//go:embed sql/write.sql
var writeText string

//go:embed sql/noted.sql
var notedText string

//go:embed sql/look.sql
var lookText string

//go:embed sql/list.sql
var listText string

//go:embed sql/sweep.sql
var sweepText string

// statements are the texts that a store sends.
type statements struct {
	write, one, lock, noted string // of requests
	look, sweep, list       string
}

// statementsFor makes the texts for a table; fit makes them fit its size.
func statementsFor(table string, fit func(text string) string) *statements {
	included := strings.NewReplacer("-- include version.sql\n", versionText)
	text := func(source string) string {
		var b strings.Builder
		for line := range strings.Lines(included.Replace(source)) {
			if line = strings.TrimSpace(line); !strings.HasPrefix(line, "--") {
				b.WriteString(line)
				b.WriteByte('\n')
			}
		}
		return fit(strings.ReplaceAll(b.String(), DefaultTable, table))
	}
	return &statements{
		write: text(writeText), one: text(oneText), lock: text(lockText), noted: text(notedText), look: text(lookText), sweep: text(sweepText), list: text(listText),
	}
}

// measure has the statements follow the size of the table, once a second at most.
func (s *Store) measure(from pgpool.Querier) {
	if !s.text.Due() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.set.Timeout)
	defer cancel()
	if err := s.text.Measure(ctx, from, s.set.Table); err != nil {
		s.work.Failed("the size of the table of locks is not known", err)
	}
}

// rowTimeout is for how many ms a statement waits for the lock of one row.
func (s *Store) rowTimeout() string {
	return strconv.FormatInt(max(s.set.Timeout.Milliseconds()/4, 1), 10)
}

// Arrays are texts in PostgreSQL's form: database/sql has no form for them that all drivers know.

func textArray[T any](all []T, field func(T) string) string {
	b := make([]byte, 0, 48*len(all)+2)
	for _, r := range all {
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

func bytesArray[T any](all []T, field func(T) string) string {
	const digits = "0123456789abcdef"
	b := make([]byte, 0, 64*len(all)+2)
	for _, r := range all {
		b = append(b, `,"\\x`...)
		s := field(r)
		for i := range len(s) {
			b = append(b, digits[s[i]>>4], digits[s[i]&15])
		}
		b = append(b, '"')
	}
	return braced(b)
}

func numberArray[T any](all []T, field func(T) int64) string {
	b := make([]byte, 0, 18*len(all)+2)
	for _, r := range all {
		b = strconv.AppendInt(append(b, ','), field(r), 10)
	}
	return braced(b)
}

// braced makes an array of elements that begin with a comma each.
func braced(b []byte) string {
	if len(b) == 0 {
		return "{}"
	}
	b[0] = '{'
	return string(append(b, '}'))
}
