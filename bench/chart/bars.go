package chart

import (
	"math"

	"golang.org/x/image/font"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

const bold = font.WeightBold

// Bars is a panel of bars that lie below one another.
type Bars struct {
	Head string
	Axis string // quantity and unit of the length
	Bars []Bar  // from top to bottom
	// Nameless leaves the names out, where they stand at the panel to the left.
	Nameless bool
	Ticks    func(float64) string // writes a value of the axis
	Max      float64              // the end of the axis, if that is beyond the longest bar
}

// Bar is a bar and the text at its end.
type Bar struct {
	Name   string
	Strong bool      // written bold
	Parts  []Segment // one after the other; none where there is no figure
	Label  string
}

// Segment is a part of a bar.
type Segment struct {
	Value float64
	Tone  Tone
}

// length is the length of the whole bar; 0 for a bar that is not drawn.
func (b *Bar) length() (sum float64) {
	for _, s := range b.Parts {
		sum += s.Value
	}
	if math.IsNaN(sum) || math.IsInf(sum, 0) {
		return 0
	}
	return sum
}

// Any reports whether there is a bar to draw.
func (b *Bars) Any() bool {
	for i := range b.Bars {
		if b.Bars[i].length() > 0 {
			return true
		}
	}
	return false
}

func (b *Bars) head() string { return b.Head }

func (b *Bars) plot() (*plot.Plot, error) {
	if !b.Any() {
		return nil, ErrNothing
	}
	longest := b.Max
	for i := range b.Bars {
		longest = max(longest, b.Bars[i].length())
	}
	p := blank()
	p.X.Min, p.X.Max = 0, longest
	p.Y.Min, p.Y.Max = -0.5, float64(len(b.Bars))-0.5
	p.X.Label.Text = b.Axis
	var ticks plot.ConstantTicks
	for _, v := range linear(longest, 4) {
		ticks = append(ticks, plot.Tick{Value: v, Label: b.Ticks(v)})
	}
	p.X.Tick.Marker = ticks
	p.HideY()
	lines := plotter.NewGrid()
	lines.Horizontal.Width = 0
	lines.Vertical = draw.LineStyle{Color: grid, Width: 1}
	p.Add(lines, (*barPlot)(b))
	return p, nil
}

// barPlot is Bars as the library draws them.
type barPlot Bars

// y is where the bar i is; the first is on top.
func (b *barPlot) y(i int) float64 { return float64(len(b.Bars) - 1 - i) }

func (b *barPlot) nameStyle(i int) draw.TextStyle {
	style := write(textSize, ink)
	if b.Bars[i].Strong {
		style.Font.Weight = bold
	}
	style.XAlign, style.YAlign = draw.XRight, draw.YCenter
	return style
}

func (b *barPlot) labelStyle(i int) draw.TextStyle {
	style := b.nameStyle(i)
	style.XAlign = draw.XLeft
	style.Font.Size = tickSize
	if len(b.Bars[i].Parts) == 0 {
		style.Color = faint
	}
	return style
}

// label is the text at the end of a bar.
func (b *barPlot) label(i int) string {
	if len(b.Bars[i].Parts) == 0 && b.Bars[i].Label == "" {
		return "no figure"
	}
	return b.Bars[i].Label
}

const beside = 6 // pixels between a bar and its texts

// Plot implements plot.Plotter.
func (b *barPlot) Plot(c draw.Canvas, p *plot.Plot) {
	tx, ty := p.Transforms(&c)
	half := min(11, (ty(1)-ty(0))*0.34)
	for i := range b.Bars {
		y := ty(b.y(i))
		if !b.Nameless {
			c.FillText(b.nameStyle(i), vg.Point{X: tx(0) - beside, Y: y}, b.Bars[i].Name)
		}
		from := 0.0
		for _, s := range b.Bars[i].Parts {
			if x0, x1 := tx(from), tx(from+s.Value); x1-x0 > 0.05 {
				box(c, s.Tone, x0, y-half, x1, y+half)
			}
			from += s.Value
		}
		c.FillText(b.labelStyle(i), vg.Point{X: tx(from) + beside, Y: y}, b.label(i))
	}
	c.StrokeLine2(draw.LineStyle{Color: faint, Width: 1}, tx(0), c.Min.Y, tx(0), c.Max.Y)
}

// GlyphBoxes makes room for the texts of the bars.
func (b *barPlot) GlyphBoxes(p *plot.Plot) (boxes []plot.GlyphBox) {
	for i := range b.Bars {
		bar := &b.Bars[i]
		y := p.Y.Norm(b.y(i))
		if !b.Nameless {
			box := b.nameStyle(i).Rectangle(bar.Name).Add(vg.Point{X: -beside})
			boxes = append(boxes, plot.GlyphBox{X: 0, Y: y, Rectangle: box})
		}
		// As if each bar were the longest: where the boxes are must not depend on the
		// width, or panels side by side would not be equally wide.
		box := b.labelStyle(i).Rectangle(b.label(i)).Add(vg.Point{X: beside})
		boxes = append(boxes, plot.GlyphBox{X: 1, Y: y, Rectangle: box})
	}
	return boxes
}

// blank is a plot in the style of all panels.
func blank() *plot.Plot {
	p := plot.New()
	p.BackgroundColor = nil
	for _, axis := range []*plot.Axis{&p.X, &p.Y} {
		axis.Color = faint
		axis.Width = 0
		axis.Padding = 4
		axis.Label.TextStyle = write(tickSize, faint)
		axis.Label.TextStyle.XAlign, axis.Label.TextStyle.YAlign = draw.XCenter, draw.YBottom
		axis.Label.Padding = 4
		axis.Tick.Label = write(tickSize, faint)
		axis.Tick.Length = 0
		axis.Tick.LineStyle = draw.LineStyle{Color: faint}
	}
	p.X.Tick.Label.XAlign, p.X.Tick.Label.YAlign = draw.XCenter, draw.YTop
	p.Y.Tick.Label.XAlign, p.Y.Tick.Label.YAlign = draw.XRight, draw.YCenter
	return p
}

// linear returns about n round steps from 0 up to at most top.
func linear(top float64, n int) (ticks []float64) {
	step := math.Pow(10, math.Floor(math.Log10(top/float64(n))))
	for _, f := range []float64{2, 5, 10} {
		if top/step <= float64(n)+0.5 {
			break
		}
		step = f * math.Pow(10, math.Floor(math.Log10(top/float64(n))))
	}
	for i := 0; float64(i)*step <= top*1.0001; i++ {
		ticks = append(ticks, float64(i)*step)
	}
	return ticks
}
