package chart

import "image/color"

// Tone is a colour as it is on a light card and on a dark one. A picture holds the
// light one; where the reader's scheme is dark, its style sheet puts the other in
// its place. So two tones never have the same light colour.
type Tone struct{ light, dark uint32 }

// RGBA is the light colour, as [color.Color] wants it.
func (t Tone) RGBA() (r, g, b, a uint32) { return rgb(t.light).RGBA() }

func rgb(v uint32) color.RGBA {
	return color.RGBA{R: uint8(v >> 16), G: uint8(v >> 8), B: uint8(v), A: 255}
}

// The tones of the page.
var (
	card  = Tone{0xFFFFFF, 0x161B22}
	frame = Tone{0xD0D7DE, 0x30363D}
	grid  = Tone{0xE6EAEE, 0x2A3038}
	ink   = Tone{0x1F2328, 0xE6EDF3} // text
	faint = Tone{0x59636E, 0x9AA4AF} // secondary text
)

// The tones of the data. Blue to Pink are after the palette of Okabe and Ito (Color
// Universal Design, 2008), which readers with any colour vision can tell apart; some
// are darker here, because the originals are too pale for lines on white.
var (
	Blue   = Tone{0x0072B2, 0x58B4F0}
	Orange = Tone{0xB87400, 0xE69F00}
	Green  = Tone{0x008F68, 0x2DC79B}
	Pink   = Tone{0xB5578D, 0xE08DBE}
	Grey   = Tone{0x818A94, 0x7B8590}
	Mist   = Tone{0xC3C9D0, 0x4A525B} // a second part of a grey bar
	// Four steps of one measure, from one end to the other.
	Ember = Tone{0xC44E00, 0xF0772B}
	Sand  = Tone{0xE8A33D, 0xF2C879}
	Sky   = Tone{0x7DB8DE, 0x9CCFEF}
	Deep  = Tone{0x1F5F8F, 0x3F86BE}
)

// tones are all of them.
var tones = []Tone{card, frame, grid, ink, faint, Blue, Orange, Green, Pink, Grey, Mist, Ember, Sand, Sky, Deep}
