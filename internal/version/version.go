// Package version tells which version of this module a program was built with.
package version

import (
	"runtime/debug"
	"strings"
)

// Released is the newest version in CHANGELOG.md: the version of a build that does not name
// the module's version, such as a test, or a program that replaces this module by a
// directory.
const Released = "v0.1.0"

const module = "github.com/interlock-go/interlock"

// Module returns the version of the module in the running program, such as v0.1.0. A commit
// without a tag has a pseudo-version.
func Module() string { return of(debug.ReadBuildInfo()) }

func of(info *debug.BuildInfo, ok bool) string {
	if !ok {
		return Released
	}
	for _, m := range append(info.Deps, &info.Main) {
		if m.Path != module {
			continue
		}
		if m.Replace != nil {
			m = m.Replace
		}
		if strings.HasPrefix(m.Version, "v") {
			return m.Version
		}
	}
	return Released
}
