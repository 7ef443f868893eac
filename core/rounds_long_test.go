//go:build long

package core_test

const (
	randomRuns   = 40
	hanging      = 10_000
	offerWorlds  = 3000
	wakeupSteps  = 300_000
	mostTwists   = 2
	mostSteps    = 60 // of the first twist
	twistsWithin = 3  // steps
	everyStep    = 1  // of the steps has twists
)
