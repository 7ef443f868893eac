package pgpool

import "testing"

func TestSizes(t *testing.T) {
	for pages, want := range map[int64]int{0: 0, 7: 0, 8: 1, 31: 1, 32: 2, 127: 2, 128: 3, 511: 3, 512: 4, 1 << 40: 4} {
		if got := classOf(pages); got != want {
			t.Errorf("a table of %d pages is of class %d; want %d", pages, got, want)
		}
	}
}
