// Package faults holds one test for each fault that a lock on Redis can meet, on
// real servers. docs/faults.md is its table of contents.
//
// Each test asserts the error by its type, that no two holders trust their leases
// at once (or, where a server that forgets makes that possible, that the fencing
// token puts them in order and the late write is refused), and that nothing stays
// behind: no key, no goroutine, no subscription.
package faults
