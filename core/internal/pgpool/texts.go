package pgpool

import (
	"context"
	"database/sql"
	"math/bits"
	"strconv"
	"sync/atomic"
	"time"
)

// Texts are the texts of the statements on a table, a T, for the size that the table has.
// Call [Texts.Init] first. They are safe for concurrent use.
//
// A driver, or a pooler, keeps statements prepared, and PostgreSQL keeps their plans until
// the statistics of the table change. A plan that was made while the table had a few rows
// reads all of them, and goes on to do so when there are a hundred thousand. So a table of
// another size gets other texts: they differ in a comment.
type Texts[T any] struct {
	write    func(fit func(text string) string) *T
	now      atomic.Pointer[T]
	class    atomic.Int32
	measured atomic.Int64 // when the last measurement began, in ns since 1970
}

// Init writes the texts for a small table. write makes all texts anew for each size; fit adds
// the comment to a text.
func (t *Texts[T]) Init(write func(fit func(text string) string) *T) {
	t.write = write
	t.fit(0)
}

func (t *Texts[T]) fit(class int) {
	comment := "/* size " + strconv.Itoa(class) + " */"
	t.now.Store(t.write(func(text string) string { return text + comment }))
}

// Load returns the texts for the size that was measured last.
func (t *Texts[T]) Load() *T { return t.now.Load() }

// Due reports whether the last measurement began a second ago or earlier. The caller that
// gets true calls [Texts.Measure]; no other caller gets true for a second.
func (t *Texts[T]) Due() bool {
	now, last := time.Now().UnixNano(), t.measured.Load()
	return now-last >= int64(time.Second) && t.measured.CompareAndSwap(last, now)
}

// Measure asks for the size of the table, and writes the texts for it.
func (t *Texts[T]) Measure(ctx context.Context, from Querier, table string) error {
	pages, err := Pages(ctx, from, table)
	if err != nil {
		return err
	}
	if class := classOf(pages); t.class.Swap(int32(class)) != int32(class) { //nolint:gosec // at most largest
		t.fit(class)
	}
	return nil
}

// Querier is a pool of connections, or a connection.
type Querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Pages returns how many pages a table has.
func Pages(ctx context.Context, from Querier, table string) (n int64, err error) {
	err = from.QueryRowContext(ctx,
		"SELECT pg_relation_size($1::text::regclass) / current_setting('block_size')::bigint", table).Scan(&n)
	return n, err
}

// largest is the greatest class of a table's size. Its rows are found by their keys at any
// size beyond.
const largest = 4

// classOf is the class of a table's size: less than 8, 32, 128 or 512 pages, or more.
func classOf(pages int64) int { return min((bits.Len64(uint64(pages)/8)+1)/2, largest) }
