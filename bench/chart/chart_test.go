package chart

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"
)

func text(v float64) string { return fmt.Sprintf("%g", v) }

func bars(list ...Bar) *Figure {
	return &Figure{Title: "title", Height: 200, Panels: []Panel{&Bars{Head: "head", Axis: "axis", Bars: list, Ticks: text}}}
}

func lines(x Scale, list ...Series) *Figure {
	x.Text = text
	return &Figure{Title: "title", Height: 200, Panels: []Panel{&Lines{
		Head: "head", Axis: "axis", Named: true, X: x, Y: Scale{Text: text}, Series: list,
	}}}
}

// drawn returns a picture, which it has looked through.
func drawn(t *testing.T, f *Figure) string {
	t.Helper()
	svg, err := f.SVG()
	if err != nil {
		t.Fatal(err)
	}
	again, err := f.SVG()
	if err != nil || !bytes.Equal(svg, again) {
		t.Errorf("the same figures give another picture, error %v", err)
	}
	for decoder := xml.NewDecoder(bytes.NewReader(svg)); ; {
		if _, err := decoder.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("%v\n%s", err, svg)
		}
	}
	for _, bad := range []string{"NaN", "Inf", "#000000"} {
		if strings.Contains(string(svg), bad) {
			t.Errorf("the picture has %s:\n%s", bad, svg)
		}
	}
	return string(svg)
}

// count returns how many shapes are filled with a tone.
func count(svg string, tone Tone) int {
	return strings.Count(svg, fmt.Sprintf("style=\"fill:#%06X", tone.light))
}

func TestABarWithoutFigureIsLeftOut(t *testing.T) {
	part := func(v float64) []Segment { return []Segment{{v, Green}} }
	svg := drawn(t, bars(
		Bar{Name: "first", Parts: part(3), Label: "three"}, Bar{Name: "second"},
		Bar{Name: "third", Parts: part(1), Label: "one"}, Bar{Name: "fourth", Label: "nothing came"},
	))
	if n := count(svg, Green); n != 2 {
		t.Errorf("%d bars are drawn, want 2", n)
	}
	for _, want := range []string{">first<", ">second<", ">three<", ">one<", ">no figure<", ">nothing came<", ">head<", ">axis<", "<title>title</title>"} {
		if !strings.Contains(svg, want) {
			t.Errorf("the picture lacks %s", want)
		}
	}
	for _, empty := range []*Figure{bars(Bar{Name: "only"}), bars(), bars(Bar{Parts: part(math.NaN())}), {Height: 100}} {
		if svg, err := empty.SVG(); !errors.Is(err, ErrNothing) {
			t.Errorf("a picture of nothing: %v, %s", err, svg)
		}
	}
}

func TestAPointThatAnAxisCannotShowIsLeftOut(t *testing.T) {
	svg := drawn(t, lines(Scale{Log: true},
		Series{Name: "good", Tone: Green, Marks: true, Points: []Point{{0, 1}, {1, 2}, {10, math.NaN()}, {100, 3}}},
		Series{Name: "bad", Tone: Pink, Marks: true, Points: []Point{{0, 1}, {-1, 2}, {math.Inf(1), 2}}},
	))
	if n := count(svg, Green); n != 2 {
		t.Errorf("%d dots are drawn, want 2:\n%s", n, svg)
	}
	if strings.Contains(svg, ">bad<") || strings.Contains(svg, fmt.Sprintf("#%06X", Pink.light)) {
		t.Error("a line without a point is drawn")
	}
	if _, err := lines(Scale{Log: true}, Series{Points: []Point{{0, 1}}}).SVG(); !errors.Is(err, ErrNothing) {
		t.Errorf("a picture without a point: %v", err)
	}
}

func TestNamesOfLinesThatEndTogetherStandApart(t *testing.T) {
	var list []Series
	for i := range 6 {
		list = append(list, Series{Name: fmt.Sprint("line-", i), Tone: Blue, Points: []Point{{1, 1}, {2, 10 + float64(i)/100}}})
	}
	svg := drawn(t, lines(Scale{}, list...))
	decoder := xml.NewDecoder(strings.NewReader(svg))
	var ys []float64
	for {
		token, err := decoder.Token()
		if err != nil {
			break
		}
		at, ok := token.(xml.StartElement)
		if !ok || at.Name.Local != "text" {
			continue
		}
		var y float64
		for _, a := range at.Attr {
			if a.Name.Local == "y" {
				if _, err := fmt.Sscan(a.Value, &y); err != nil {
					t.Fatal(err)
				}
			}
		}
		if name, err := decoder.Token(); err == nil && strings.HasPrefix(string(name.(xml.CharData)), "line-") {
			ys = append(ys, -y)
		}
	}
	if len(ys) != 6 {
		t.Fatalf("%d names", len(ys))
	}
	for i := 1; i < len(ys); i++ {
		if math.Abs(ys[i]-ys[i-1]) < textSize {
			t.Errorf("the names are at %v", ys)
		}
	}
}

func TestATextThatDoesNotFitIsAnError(t *testing.T) {
	f := bars(Bar{Name: "a", Parts: []Segment{{1, Blue}}})
	f.Note = strings.Repeat("much too long ", 20)
	if _, err := f.SVG(); err == nil {
		t.Error("it is drawn")
	}
}

func TestTextIsEscaped(t *testing.T) {
	f := bars(Bar{Name: "a<b & c", Parts: []Segment{{1, Blue}}})
	f.Title = "x < y"
	if svg := drawn(t, f); !strings.Contains(svg, "a&lt;b &amp; c") || !strings.Contains(svg, "<title>x &lt; y</title>") {
		t.Errorf("in the picture:\n%s", svg)
	}
}

// Each tone that a picture uses is replaced where the reader's scheme is dark.
func TestTheDarkSchemeReplacesEveryTone(t *testing.T) {
	f := bars(Bar{Name: "a", Parts: []Segment{{1, Blue}, {1, Ember}}})
	svg := drawn(t, f)
	_, style, _ := strings.Cut(svg, "<style>")
	style, _, _ = strings.Cut(style, "</style>")
	for _, tone := range []Tone{card, frame, grid, ink, faint, Blue, Ember} {
		if !strings.Contains(style, fmt.Sprintf("#%06X !important", tone.dark)) {
			t.Errorf("the style sheet lacks #%06X:\n%s", tone.dark, style)
		}
	}
}

// WCAG 2.1 asks for a contrast of 4.5 for text and 3 for graphics (1.4.3, 1.4.11). The two
// palest steps of a measure, and a second part, touch darker tones.
func TestTonesStandOutOnBothCards(t *testing.T) {
	seen := map[uint32]bool{}
	for _, tone := range tones {
		if seen[tone.light] || tone.light == 0 {
			t.Errorf("#%06X is light twice, or black, which the library does not write", tone.light)
		}
		seen[tone.light] = true
		want := 3.0
		switch tone {
		case card, frame, grid:
			continue
		case Sand, Sky, Mist:
			want = 1.6
		case ink, faint:
			want = 4.5
		}
		if c := contrast(tone.light, card.light); c < want {
			t.Errorf("#%06X on the light card: %.2f, want %v", tone.light, c, want)
		}
		if c := contrast(tone.dark, card.dark); c < want {
			t.Errorf("#%06X on the dark card: %.2f, want %v", tone.dark, c, want)
		}
	}
}

// contrast is the ratio of two colours as WCAG 2.1 defines it.
func contrast(a, b uint32) float64 {
	luminance := func(v uint32) (l float64) {
		for i, weight := range []float64{0.0722, 0.7152, 0.2126} {
			c := float64(v>>(8*i)&0xFF) / 255
			if c <= 0.04045 {
				c /= 12.92
			} else {
				c = math.Pow((c+0.055)/1.055, 2.4)
			}
			l += weight * c
		}
		return l
	}
	x, y := luminance(a)+0.05, luminance(b)+0.05
	return max(x, y) / min(x, y)
}

func TestTicksAreRoundAndFew(t *testing.T) {
	for top := 0.003; top < 1e7; top *= 1.7 {
		ticks := linear(top, 4)
		if len(ticks) < 2 || len(ticks) > 6 || ticks[0] != 0 || ticks[len(ticks)-1] > top*1.001 {
			t.Errorf("up to %v: %v", top, ticks)
		}
	}
	if got := logarithmic(90, 2500); fmt.Sprint(got) != "[100 200 500 1000 2000]" {
		t.Errorf("from 90 to 2500: %v", got)
	}
	if got := logarithmic(0.5, 2e5); fmt.Sprint(got) != "[1 10 100 1000 10000 100000]" {
		t.Errorf("from 0.5 to 200,000: %v", got)
	}
}
