package main

import "strings"

// screen is the size of a terminal in characters.
type screen struct{ rows, columns int }

// usual is the size of a terminal that does not tell its own.
var usual = screen{rows: 24, columns: 80}

// inPlace makes lines that overwrite the lines of before, from the first line of the screen on. A line that is
// longer than the screen is wide is cut: the terminal would wrap it, and scroll the first lines away.
func (s screen) inPlace(text string) string {
	var b strings.Builder
	b.WriteString("\x1b[H") // the first line
	for line := range strings.Lines(text) {
		b.WriteString(s.cut(strings.TrimSuffix(line, "\n")) + "\x1b[K\n") // and nothing of the old line after it
	}
	b.WriteString("\x1b[J") // and no old lines below
	return b.String()
}

// cut shortens a line to the width of the screen. Letters of two columns (Chinese, Emoji) begin at
// U+1100; of the others above it some are counted as too wide.
func (s screen) cut(line string) string {
	column, end := 0, 0 // end is where the line is cut to make room for the sign of it
	for i, r := range line {
		width := 1
		if r >= 0x1100 && r != '…' {
			width = 2
		}
		if column+width > s.columns {
			return line[:end] + "…"
		}
		if column += width; column < s.columns {
			end = i + len(string(r))
		}
	}
	return line
}
