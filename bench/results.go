package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
)

// saved has the measurements of a run, as a file keeps them: all of it, so that a report made
// from it is the report of the run, also where later reports show more.
type saved struct {
	About string
	Cells []savedCell
}

// savedCell is a cell in one round.
type savedCell struct {
	Row, Library string
	Result       *result // nil for a failure
}

// save writes the report's results to a file, a line for each; nowhere if the name
// is empty.
func (r *report) save(path string) error {
	if path == "" {
		return nil
	}
	head, err := json.Marshal(r.about)
	if err != nil {
		return err
	}
	text := new(bytes.Buffer)
	fmt.Fprintf(text, "{\"About\": %s,\n\"Cells\": [", head)
	comma := ""
	for _, row := range rows {
		for _, library := range row.libraries {
			o := r.cells[row.name][library]
			if o == nil {
				continue
			}
			for _, res := range slices.Concat(o.rounds, make([]*result, o.failed)) {
				line, err := json.Marshal(savedCell{row.name, library, res})
				if err != nil {
					return err
				}
				fmt.Fprintf(text, "%s\n%s", comma, line)
				comma = ","
			}
		}
	}
	text.WriteString("\n]}\n")
	return os.WriteFile(path, text.Bytes(), 0o644)
}

// loadReport reads a file of save.
func loadReport(path string) (*report, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w; a run of all cells writes it", err)
	} else if err != nil {
		return nil, err
	}
	var s saved
	if err := json.Unmarshal(text, &s); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	r := newReport(s.About)
	for _, c := range s.Cells {
		row := rowOf(c.Row)
		if row == nil || !slices.Contains(row.libraries, c.Library) {
			return nil, fmt.Errorf("%s: there is no cell %s/%s; -list says which there are", path, c.Row, c.Library)
		}
		if c.Result != nil && c.Result.Waits == nil {
			c.Result.Waits = new(hist)
		}
		r.add(c.Row, c.Library, c.Result)
	}
	return r, nil
}
