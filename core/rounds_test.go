//go:build !long

package core_test

// How much the tests that count or draw lots do. With the tag long they do more.
const (
	randomRuns   = 4
	hanging      = 1_000
	offerWorlds  = 40
	wakeupSteps  = 20_000
	mostTwists   = 1
	mostSteps    = 60 // of the first twist
	twistsWithin = 3  // steps
	everyStep    = 3  // of the steps has twists
)
