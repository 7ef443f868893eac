package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"time"
)

const (
	// subBuckets divides each power of two, so that a bucket is 3 % wide.
	subBuckets = 32
	subBits    = 5
	histSize   = 36 * subBuckets // up to some minutes
)

// hist counts durations in buckets. Their width grows with their value, as in
// HdrHistogram. Recording is an increment and allocates nothing, so that the
// measurement does not disturb the result.
type hist [histSize]uint32

func bucketOf(d time.Duration) int {
	v := uint64(max(d, 0))
	if v < subBuckets {
		return int(v)
	}
	shift := bits.Len64(v) - subBits - 1
	return min(shift*subBuckets+int(v>>shift), histSize-1)
}

// valueOf is the middle of a bucket.
func valueOf(i int) time.Duration {
	if i < 2*subBuckets {
		return time.Duration(i)
	}
	shift := i/subBuckets - 1
	low := int64(i-shift*subBuckets) << shift
	return time.Duration(low + int64(1)<<shift/2)
}

func (h *hist) add(d time.Duration) { h[bucketOf(d)]++ }

func (h *hist) merge(o *hist) {
	for i, n := range o {
		h[i] += n
	}
}

// MarshalJSON writes the buckets that are not empty: number, count, number, count.
func (h *hist) MarshalJSON() ([]byte, error) {
	list := []uint32{}
	for i, n := range h {
		if n > 0 {
			list = append(list, uint32(i), n)
		}
	}
	return json.Marshal(list)
}

// UnmarshalJSON reads the output of MarshalJSON.
func (h *hist) UnmarshalJSON(text []byte) error {
	var list []uint32
	if err := json.Unmarshal(text, &list); err != nil {
		return err
	}
	*h = hist{}
	if len(list)%2 != 0 {
		return errors.New("waits are pairs of a bucket and a count")
	}
	for i := 0; i < len(list); i += 2 {
		if list[i] >= histSize {
			return fmt.Errorf("waits have no bucket %d", list[i])
		}
		h[list[i]] = list[i+1]
	}
	return nil
}

// quantile returns the duration below which the share q of all lies; 0 for none.
func (h *hist) quantile(q float64) time.Duration {
	var total, seen uint64
	for _, n := range h {
		total += uint64(n)
	}
	for i, n := range h {
		seen += uint64(n)
		if n > 0 && float64(seen) >= q*float64(total) {
			return valueOf(i)
		}
	}
	return 0
}

// jain is Jain's fairness index of shares: 1 when all got the same, 1/n when one
// got everything (R. Jain et al., DEC-TR-301, 1984).
func jain(shares []int64) float64 {
	var sum, squares float64
	for _, s := range shares {
		sum += float64(s)
		squares += float64(s) * float64(s)
	}
	if squares == 0 {
		return 0
	}
	return sum * sum / (float64(len(shares)) * squares)
}

// median of a list that is not empty; of an even number the middle of two.
func median(list []float64) float64 {
	list = slices.Sorted(slices.Values(list))
	n := len(list)
	return (list[(n-1)/2] + list[n/2]) / 2
}
