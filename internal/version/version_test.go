package version

import (
	"runtime/debug"
	"testing"
)

func TestTheVersionIsTheVersionOfTheModule(t *testing.T) {
	other := &debug.Module{Path: "example.com/other", Version: "v9.0.0"}
	for name, c := range map[string]struct {
		info *debug.BuildInfo
		want string
	}{
		"a dependency": {&debug.BuildInfo{Main: *other, Deps: []*debug.Module{other, {Path: module, Version: "v0.4.0"}}}, "v0.4.0"},
		"a fork": {&debug.BuildInfo{Deps: []*debug.Module{
			{Path: module, Version: "v0.4.0", Replace: &debug.Module{Path: "example.com/fork", Version: "v0.4.1"}},
		}}, "v0.4.1"},
		"a directory": {&debug.BuildInfo{Deps: []*debug.Module{
			{Path: module, Version: "v0.0.0", Replace: &debug.Module{Path: "../interlock"}},
		}}, Released},
		"the tool":        {&debug.BuildInfo{Main: debug.Module{Path: module, Version: "v0.4.0"}}, "v0.4.0"},
		"a commit":        {&debug.BuildInfo{Main: debug.Module{Path: module, Version: "v0.4.1-0.20260131120000-0123456789ab"}}, "v0.4.1-0.20260131120000-0123456789ab"},
		"a checkout":      {&debug.BuildInfo{Main: debug.Module{Path: module, Version: "(devel)"}, Deps: []*debug.Module{other}}, Released},
		"without modules": {&debug.BuildInfo{Main: *other}, Released},
	} {
		t.Run(name, func(t *testing.T) {
			if got := of(c.info, true); got != c.want {
				t.Errorf("version %q, want %q", got, c.want)
			}
		})
	}
	if got := of(nil, false); got != Released {
		t.Errorf("version %q of a program that does not say", got)
	}
}
