// Command interlockvet reports code that breaks a rule of Interlock that the compiler cannot
// check. go vet runs it:
//
//	go install github.com/interlock-go/interlock/cmd/interlockvet@latest
//	go vet -vettool=$(which interlockvet) ./...
//
// Package analyzer has the rules, and the comment that silences a line.
package main

import (
	"golang.org/x/tools/go/analysis/unitchecker"

	"github.com/interlock-go/interlock/cmd/interlockvet/analyzer"
)

func main() {
	unitchecker.Main(analyzer.Analyzer)
}
