//go:build long && !linux

package transactions

// work does nothing: the processes of TestKills need Linux.
func work() {}
