//go:build integration && !long

package rediswire

// fewPlaces is how many calls the check of places makes unless it is told. With the tag long
// there are twenty times as many.
const fewPlaces = 5_000
