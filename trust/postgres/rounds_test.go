//go:build integration && unix && !long

package postgres_test

// rulesCalls is how many random calls are compared with the rules; with the tag long it is more.
const rulesCalls = 1500
