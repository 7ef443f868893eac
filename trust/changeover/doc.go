// Package changeover tests the change from another library of locks to this one, with the
// libraries themselves (redsync, redislock, SET NX by hand) on a real Redis: which releases
// exclude each other, the fate of the other lock, and a rolling change under load. The code
// that docs/moving.md shows is in others_test.go.
package changeover
