//go:build integration && !long

package keystate

// fewCalls is the default number of calls in the check of the scripts. With the tag long there
// are ten times as many.
const fewCalls = 10_000
