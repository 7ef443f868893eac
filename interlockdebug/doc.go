// Package interlockdebug is a page that shows the locks of one process: its holds and
// their ages, which callers wait, the counts and latencies of each rule, the last
// losses, and the claims of idempotent endpoints that are not settled.
//
//	observer := interlockdebug.NewObserver()
//	locker, err := core.New(store, core.WithObserver(observer))
//	debug.Handle("/debug/interlock", interlockdebug.Handler(locker, interlockdebug.Observed(observer)))
//
// The observer is optional. Without it the page costs nothing until it is asked for,
// and shows no counts, no latencies and no waiting times. observe.Join joins it with
// another observer.
//
// A browser gets HTML, without scripts or other files. A client that prefers
// application/json gets the same as JSON ([Snapshot]).
//
// The page must not stand on a public address: it asks no client for its name, and
// shows how the service works and its present activity. Serve it on the loopback
// interface or on a port for operators, or under the service's own authentication.
// Keys are shown as hashes (core.Hashed), unless [ShowKeys] is given.
package interlockdebug
