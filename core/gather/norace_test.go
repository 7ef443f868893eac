//go:build !race

package gather_test

// raceDetector says that the race detector is on.
const raceDetector = false
