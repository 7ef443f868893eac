//go:build integration && unix && long

package postgres_test

// killedDebits is the number of debits while connections end.
const killedDebits = 50_000
