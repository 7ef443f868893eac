package main

import "strings"

// shellQuoted returns an argument for a POSIX shell. s is as display.Text makes it.
func shellQuoted(s string) string {
	if s != "" && s[0] == '-' {
		return "-- " + shellValue(s)
	}
	return shellValue(s)
}

// shellValue returns the value of a flag, after its equals sign.
func shellValue(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("_-./:,@%+=", r)
	}
	if s != "" && strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
