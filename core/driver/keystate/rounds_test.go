//go:build integration && !long

package keystate

// fewCalls is how many calls the check of the scripts makes unless it is told. With the tag long
// there are ten times as many.
const fewCalls = 10_000
