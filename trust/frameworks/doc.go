// Package frameworks compiles and runs the bridges from net/http of docs/frameworks.md,
// and the two bridges that fail in silence.
package frameworks
