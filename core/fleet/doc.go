// Package fleet shows and repairs the locks of all processes that share a store: which
// process holds which lock, which wait, and for how long. It reads the store as a
// [driver.Lister]. The command interlock (cmd/interlock) is this package on a terminal.
//
// On Redis a [Fleet] works on a client for a single server, for Sentinel, or for a Cluster. It
// reads with commands that change nothing, so a Redis user with the right to read is
// enough; docs/operations.md lists the rights. [Fleet.Locks] goes through the keys by
// SCAN with a bounded rate and bounded memory.
//
// The results can be out of date when they are returned. Texts from the store (keys, names of
// hosts and services) are returned as they are: escape them before they are shown.
package fleet
