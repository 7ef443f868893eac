//go:build integration && unix && long

package postgres_test

// rulesCalls is how many random calls are compared with the rules.
const rulesCalls = 10_000
