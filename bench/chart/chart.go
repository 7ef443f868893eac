// Package chart draws the pictures of the benchmark's report as SVG: bars and lines
// in panels side by side, on a card that is readable on a light page and on a dark
// one. The same figures give the same bytes, so a picture under version control
// changes only with its data.
package chart

import (
	"bytes"
	"errors"
	"fmt"
	"html"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// Width is the width of every picture, in pixels.
const Width = 720

// The sizes of the text and the distances, in pixels.
const (
	titleSize = 17
	textSize  = 13
	tickSize  = 12
	margin    = 18
	headRoom  = 24 // above a panel, for its title
	gap       = 22 // between panels
	swatch    = 11
)

// Figure is a picture.
type Figure struct {
	Title  string
	Note   string // a line below the title; empty for none
	Legend []Key  // a line below that; empty for none
	Panels []Panel
	Height int // in pixels
}

// Key is an entry of a legend.
type Key struct {
	Name string
	Tone Tone
	Line bool // as a line, else as a square
}

// Panel is one part of a picture: [Bars] or [Lines].
type Panel interface {
	// head is the title of the panel.
	head() string
	// plot returns the panel without its title; an error if it has nothing to show.
	plot() (*plot.Plot, error)
}

// ErrNothing is the error of a picture for which there is no figure.
var ErrNothing = errors.New("chart: there is no figure to draw")

// SVG draws the picture.
func (f *Figure) SVG() ([]byte, error) {
	plots := make([]*plot.Plot, len(f.Panels))
	for i, panel := range f.Panels {
		p, err := panel.plot()
		if err != nil {
			return nil, err
		}
		plots[i] = p
	}
	if len(plots) == 0 {
		return nil, ErrNothing
	}
	w, h := vg.Length(Width), vg.Length(f.Height)
	canvas := vgsvg.NewWith(vgsvg.UseWH(w, h))
	c := draw.New(canvas)
	background(c)
	c = draw.Crop(c, margin, -margin, margin-4, -margin)
	height, right := f.heading(c)
	c.Max.Y -= height + headRoom
	tiles := draw.Tiles{Rows: 1, Cols: len(plots), PadX: gap}
	for i, tile := range plot.Align([][]*plot.Plot{plots}, tiles, c)[0] {
		plots[i].Draw(tile)
		data := plots[i].DataCanvas(tile)
		style := write(textSize, ink)
		style.YAlign = draw.YBottom
		c.FillText(style, vg.Point{X: data.Min.X, Y: data.Max.Y + 7}, f.Panels[i].head())
		right = max(right, data.Min.X+style.Width(f.Panels[i].head()))
	}
	if right > c.Max.X+margin/2 {
		return nil, fmt.Errorf("chart: a text of %q ends beyond the picture, at %.0f of %d", f.Title, right, Width)
	}
	return f.finish(canvas)
}

// background fills the card, which has round corners.
func background(c draw.Canvas) {
	const r = 8
	a, b := c.Min.Add(vg.Point{X: 0.5, Y: 0.5}), c.Max.Sub(vg.Point{X: 0.5, Y: 0.5})
	var p vg.Path
	p.Move(vg.Point{X: a.X + r, Y: a.Y})
	p.Line(vg.Point{X: b.X - r, Y: a.Y})
	p.QuadTo(vg.Point{X: b.X, Y: a.Y}, vg.Point{X: b.X, Y: a.Y + r})
	p.Line(vg.Point{X: b.X, Y: b.Y - r})
	p.QuadTo(vg.Point{X: b.X, Y: b.Y}, vg.Point{X: b.X - r, Y: b.Y})
	p.Line(vg.Point{X: a.X + r, Y: b.Y})
	p.QuadTo(vg.Point{X: a.X, Y: b.Y}, vg.Point{X: a.X, Y: b.Y - r})
	p.Line(vg.Point{X: a.X, Y: a.Y + r})
	p.QuadTo(vg.Point{X: a.X, Y: a.Y}, vg.Point{X: a.X + r, Y: a.Y})
	p.Close()
	c.SetColor(card)
	c.Fill(p)
	c.SetLineStyle(draw.LineStyle{Color: frame, Width: 1})
	c.Stroke(p)
}

// heading writes the text above the panels, and returns its height and its right end.
func (f *Figure) heading(c draw.Canvas) (height, right vg.Length) {
	line := func(style draw.TextStyle, text string, distance vg.Length) {
		style.YAlign = draw.YTop
		c.FillText(style, vg.Point{X: c.Min.X, Y: c.Max.Y - height}, text)
		height += style.Font.Size + distance
		right = max(right, c.Min.X+style.Width(text))
	}
	title := write(titleSize, ink)
	title.Font.Weight = bold
	line(title, f.Title, 7)
	if f.Note != "" {
		line(write(textSize, faint), f.Note, 9)
	}
	if len(f.Legend) == 0 {
		return height + 2, right
	}
	x, y := c.Min.X, c.Max.Y-height-4
	style := write(textSize, ink)
	style.YAlign = draw.YTop
	for _, k := range f.Legend {
		width := vg.Length(swatch)
		if k.Line {
			width = 2 * swatch
			middle := y - swatch/2
			c.StrokeLine2(draw.LineStyle{Color: k.Tone, Width: 3}, x, middle, x+width, middle)
		} else {
			box(c, k.Tone, x, y-swatch, x+swatch, y)
		}
		x += width + 6
		c.FillText(style, vg.Point{X: x, Y: y + 2}, k.Name)
		x += style.Width(k.Name)
		right = max(right, x)
		x += 18
	}
	return height + textSize + 14, right
}

// box fills a rectangle.
func box(c draw.Canvas, tone Tone, x0, y0, x1, y1 vg.Length) {
	c.SetColor(tone)
	c.Fill(vg.Rectangle{Min: vg.Point{X: x0, Y: y0}, Max: vg.Point{X: x1, Y: y1}}.Path())
}

// write is the style of a text, with its left end at the point.
func write(size font.Length, tone Tone) draw.TextStyle {
	return draw.TextStyle{
		Color: tone, Font: font.From(font.Font{Typeface: "Liberation", Variant: "Sans"}, size),
		Handler: plot.DefaultTextHandler,
	}
}

// finish makes the document: pixels in place of points, a name for readers that
// have it read to them, fonts for readers without Liberation, and the dark scheme.
func (f *Figure) finish(canvas *vgsvg.Canvas) ([]byte, error) {
	var raw bytes.Buffer
	if _, err := canvas.WriteTo(&raw); err != nil {
		return nil, err
	}
	_, body, ok := strings.Cut(raw.String(), "xlink\">\n")
	if !ok {
		return nil, errors.New("chart: the document does not begin as it did")
	}
	// Arial and Helvetica are as wide as Liberation Sans, letter by letter.
	body = strings.ReplaceAll(body, "font-family:Liberation Sans;font-variant:normal;", "font-family:Liberation Sans,Arial,Helvetica,sans-serif;")
	var out strings.Builder
	fmt.Fprintf(&out, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" role=\"img\">\n",
		Width, f.Height, Width, f.Height)
	fmt.Fprintf(&out, "<title>%s</title>\n<style>\n@media (prefers-color-scheme: dark) {\n", html.EscapeString(f.Title))
	for _, t := range tones {
		for _, use := range []string{"fill", "stroke"} {
			if light := fmt.Sprintf("%s:#%06X", use, t.light); strings.Contains(body, light) {
				fmt.Fprintf(&out, "[style*=\"%s\"] { %s: #%06X !important }\n", light, use, t.dark)
			}
		}
	}
	out.WriteString("}\n</style>\n" + body)
	return []byte(out.String()), nil
}
