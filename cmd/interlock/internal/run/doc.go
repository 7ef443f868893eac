// Package run runs a command while it holds a lock: `interlock run`.
//
// The lock is a renewed lease of one process, the wrapper. The command must have
// ended before the server can give the lock to another process, also where the
// wrapper cannot reach the server any more. So the wrapper ends the command while
// the lease is still good:
//
//	|<------------------------------ ttl ------------------------------->|
//	last confirmed                    SIGTERM         SIGKILL  deadline  the server
//	renewal, sent                     |<--- grace --->|<-margin->|       lets go
//
// The deadline is core.Lease.Deadline, which is 1 % of the ttl and 2 ms before the
// server can let the lock go at the earliest. The margin is for a wrapper that the
// scheduler wakes late, and for the time that a process needs to die. A renewal that
// succeeds before SIGTERM moves all of it.
//
// If the server says that the lock was deleted, or that another owner holds it,
// another command may be running already. SIGTERM goes out at once, and SIGKILL
// after the grace.
//
// docs/run.md lists how a command and its children end or live on. Here they are child.pass
// (a signal), watch.end and watch.tick (a loss), child.attributes (the death of the
// wrapper), and watch.sayWhoLives (processes that no signal ends).
package run
