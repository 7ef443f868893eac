// Package faults holds tests of the faults that a lock on Redis can meet and that the
// store's own tests do not have: servers, processes and networks that break, on real
// servers. docs/evidence.md#each-fault-and-its-test names them, and the others.
//
// Each test asserts the error by its type, that no two holders trust their leases
// at once (or, where a server that forgets makes that possible, that the fencing
// token puts them in order and the late write is refused), and that nothing
// remains: no key, no goroutine, no subscription.
package faults
