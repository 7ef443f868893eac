package main

import (
	"errors"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/interlock-go/interlock/cmd/interlock/internal/show"
)

// list prints what a command lists, as rows below a head or as one JSON object a line. A head alone
// says that the list is empty: a list that fails before its first row prints none.
type list struct {
	w     io.Writer
	table *table // nil with -json
	heads []string
	rows  int
}

// block is after how many rows the columns are aligned anew, and printed.
const block = 200

func (c *call) list(heads ...string) *list {
	l := &list{w: c.stdout, heads: heads}
	if !c.json {
		l.table = newTable(c.stdout)
	}
	return l
}

// add prints a row, or the value that it shows.
func (l *list) add(value any, row ...string) error {
	l.rows++
	if l.table == nil {
		return show.JSON(l.w, value)
	}
	if l.rows == 1 {
		l.table.row(l.heads...)
	}
	l.table.row(row...)
	if l.rows%block == 0 {
		return l.table.flush()
	}
	return nil
}

// end prints the rest, and returns the error that ended the reading.
func (l *list) end(err error) error {
	if l.table == nil {
		return err
	}
	if l.rows == 0 && err == nil {
		l.table.row(l.heads...)
	}
	return errors.Join(l.table.flush(), err)
}

// table prints columns below each other.
type table struct {
	tab *tabwriter.Writer
}

func newTable(w io.Writer, heads ...string) *table {
	t := &table{tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)}
	if len(heads) > 0 {
		t.row(heads...)
	}
	return t
}

// row adds a row. Its cells have no tabs and no line ends: they are as display.Text
// makes them.
func (t *table) row(cells ...string) {
	for i, cell := range cells {
		if i > 0 {
			_, _ = fmt.Fprint(t.tab, "\t")
		}
		_, _ = fmt.Fprint(t.tab, cell)
	}
	_, _ = fmt.Fprintln(t.tab)
}

func (t *table) flush() error { return t.tab.Flush() }
