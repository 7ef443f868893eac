//go:build redis

package main

import "log/slog"

// store returns an error: the clients are left out.
func (c *connection) store(*slog.Logger) (opened, error) {
	return opened{}, &exitError{exitUsage, errLeftOut}
}
