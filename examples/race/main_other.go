//go:build !unix

// Command race stops processes by signals (SIGSTOP), and therefore needs Unix.
package main

import "log"

func main() { log.Fatal("race: this system has no SIGSTOP") }
