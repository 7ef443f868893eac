// Package display is the common code of the pages of locks and the tool's terminal:
// texts that can be shown in safety ([Text]), the style, the heads of tables,
// durations, and the headers that protect a page.
//
// The debug page of a process (package interlockdebug) and the page of a fleet (`interlock
// ui`) show different things: the memory of one process, and the entries of all processes
// in Redis. They look alike, and escape alike.
package display
