package chart

import (
	"cmp"
	"math"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// Lines is a panel of lines.
type Lines struct {
	Head   string
	Axis   string // quantity and unit of X
	X, Y   Scale
	Series []Series // the last is drawn on top
	// Named writes the name of each line at its right end.
	Named bool
}

// Scale is an axis.
type Scale struct {
	Log      bool
	Min, Max float64   // both 0 for the range of the lines
	At       []float64 // where a value is written; nil for round ones
	Text     func(float64) string
}

// Series is a line.
type Series struct {
	Name   string
	Tone   Tone
	Strong bool // thick, and its name bold
	Marks  bool // a dot at each point
	Points []Point
}

// Point is a figure of a line.
type Point struct{ X, Y float64 }

func (l *Lines) head() string { return l.Head }

func (l *Lines) plot() (*plot.Plot, error) {
	// A value that an axis cannot show is no point of a line, and a line without a point is
	// no line.
	shown := &linePlot{named: l.Named}
	for _, s := range l.Series {
		s.Points = slices.DeleteFunc(slices.Clone(s.Points), func(p Point) bool {
			return !l.X.has(p.X) || !l.Y.has(p.Y)
		})
		if len(s.Points) > 0 {
			shown.series = append(shown.series, s)
		}
	}
	if len(shown.series) == 0 {
		return nil, ErrNothing
	}
	p := blank()
	p.X.Label.Text = l.Axis
	p.X.Padding = 6
	l.X.apply(&p.X, shown.each(func(p Point) float64 { return p.X }))
	l.Y.apply(&p.Y, shown.each(func(p Point) float64 { return p.Y }))
	lines := plotter.NewGrid()
	lines.Horizontal = draw.LineStyle{Color: grid, Width: 1}
	lines.Vertical = lines.Horizontal
	p.Add(lines, shown)
	return p, nil
}

// has reports whether v has a place on the axis.
func (s *Scale) has(v float64) bool {
	return !math.IsNaN(v) && !math.IsInf(v, 0) && (v > 0 || !s.Log)
}

// apply gives the axis its range and its ticks.
func (s *Scale) apply(axis *plot.Axis, values []float64) {
	axis.Min, axis.Max = s.Min, s.Max
	if s.Min == s.Max {
		axis.Min, axis.Max = slices.Min(values), slices.Max(values)
		if s.Log { // a little room, and no empty range
			axis.Min, axis.Max = axis.Min/1.15, axis.Max*1.15
		}
	}
	at := s.At
	if s.Log {
		axis.Scale = plot.LogScale{}
		if at == nil {
			at = logarithmic(axis.Min, axis.Max)
		}
	} else if at == nil {
		at = linear(axis.Max, 4)
	}
	var ticks plot.ConstantTicks
	for _, v := range at {
		if v >= axis.Min && v <= axis.Max {
			ticks = append(ticks, plot.Tick{Value: v, Label: s.Text(v)})
		}
	}
	axis.Tick.Marker = ticks
}

// logarithmic returns powers of ten from low to high, and two and five times these where they
// are few.
func logarithmic(low, high float64) (ticks []float64) {
	factors := []float64{1}
	if high/low < 200 {
		factors = []float64{1, 2, 5}
	}
	for e := math.Floor(math.Log10(low)); e <= math.Log10(high); e++ {
		for _, f := range factors {
			if v := f * math.Pow(10, e); v >= low && v <= high {
				ticks = append(ticks, v)
			}
		}
	}
	return ticks
}

// linePlot draws the lines and their names.
type linePlot struct {
	series []Series
	named  bool
}

// each returns a coordinate of all points.
func (l *linePlot) each(of func(Point) float64) (all []float64) {
	for _, s := range l.series {
		for _, p := range s.Points {
			all = append(all, of(p))
		}
	}
	return all
}

func (s *Series) style() draw.TextStyle {
	style := write(textSize, s.Tone)
	style.YAlign = draw.YCenter
	if s.Strong {
		style.Font.Weight = bold
	}
	return style
}

const fromEnd = 10 // pixels between a line's end and its name

// Plot implements plot.Plotter.
func (l *linePlot) Plot(c draw.Canvas, p *plot.Plot) {
	tx, ty := p.Transforms(&c)
	for _, s := range l.series {
		line := draw.LineStyle{Color: s.Tone, Width: 1.5}
		if s.Strong {
			line.Width = 4
		}
		var points []vg.Point
		for _, p := range s.Points {
			points = append(points, vg.Point{X: tx(p.X), Y: ty(p.Y)})
		}
		c.StrokeLines(line, points)
		for _, at := range points {
			if s.Marks {
				c.DrawGlyph(draw.GlyphStyle{Color: s.Tone, Radius: line.Width/2 + 2.5, Shape: draw.CircleGlyph{}}, at)
			}
		}
	}
	if l.named {
		l.writeNames(c, ty)
	}
}

// writeNames writes the names at the ends of the lines, moved apart where they
// would overlap.
func (l *linePlot) writeNames(c draw.Canvas, ty func(float64) vg.Length) {
	type name struct {
		s *Series
		y vg.Length
	}
	var names []name
	for i := range l.series {
		s := &l.series[i]
		names = append(names, name{s, ty(s.Points[len(s.Points)-1].Y)})
	}
	slices.SortStableFunc(names, func(a, b name) int { return cmp.Compare(a.y, b.y) })
	const apart = textSize + 3
	for i := 1; i < len(names); i++ { // upwards
		names[i].y = max(names[i].y, names[i-1].y+apart)
	}
	top := c.Max.Y
	for _, n := range slices.Backward(names) { // and move names above the panel down again
		n.y = min(n.y, top)
		top = n.y - apart
		c.FillText(n.s.style(), vg.Point{X: c.Max.X + fromEnd, Y: n.y}, n.s.Name)
	}
}

// GlyphBoxes makes room for the names.
func (l *linePlot) GlyphBoxes(*plot.Plot) (boxes []plot.GlyphBox) {
	for i := range l.series {
		if s := &l.series[i]; l.named {
			box := s.style().Rectangle(s.Name).Add(vg.Point{X: fromEnd})
			boxes = append(boxes, plot.GlyphBox{X: 1, Y: 0.5, Rectangle: box})
		}
	}
	return boxes
}
