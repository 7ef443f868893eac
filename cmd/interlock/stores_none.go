//go:build redis

package main

import (
	"errors"
	"log/slog"
)

// errLeftOut is the error of a tool that was built without the clients of other servers.
var errLeftOut = errors.New("this build of the tool speaks to Redis alone: it was built with -tags redis")

// postgresAddress returns nothing: the parser of addresses is left out.
func (c *connection) postgresAddress() string { return "" }

// store returns an error: the clients are left out.
func (c *connection) store(*slog.Logger) (opened, error) {
	return opened{}, &exitError{exitUsage, errLeftOut}
}
