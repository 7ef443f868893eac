package otellock

import "runtime/debug"

// module is the path of the module that this package is in.
const module = "github.com/interlock-go/interlock"

// version returns the version of the module that the program was built with: "(devel)" for
// a checkout, and empty where the build does not say.
func version(info *debug.BuildInfo, ok bool) string {
	if !ok {
		return ""
	}
	for _, m := range append(info.Deps, &info.Main) {
		if m.Path != module {
			continue
		}
		if m.Replace != nil {
			m = m.Replace
		}
		return m.Version
	}
	return ""
}
