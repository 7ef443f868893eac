// Package faultclock starts Redis servers with a wall clock that a test can step, on
// Linux. They run under a small shim for gettimeofday and clock_gettime, which the
// test compiles with the C compiler that the race detector needs anyway. (libfaketime
// hangs with Redis 7.0.)
package faultclock
