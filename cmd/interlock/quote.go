package main

import "strings"

// shellQuoted returns a word for a POSIX shell. s is as show.Text makes it.
func shellQuoted(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("_-./:,@%+=", r)
	}
	if s != "" && s[0] != '-' && strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	quoted := "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
	if s != "" && s[0] == '-' {
		return "-- " + quoted
	}
	return quoted
}
