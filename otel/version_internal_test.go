package otellock

import (
	"runtime/debug"
	"testing"
)

func TestTheVersionIsTheVersionOfTheModule(t *testing.T) {
	other := &debug.Module{Path: "example.com/other", Version: "v9.0.0"}
	for want, info := range map[string]*debug.BuildInfo{
		"v0.4.0":  {Main: *other, Deps: []*debug.Module{other, {Path: module, Version: "v0.4.0"}}},
		"v0.4.1":  {Deps: []*debug.Module{{Path: module, Version: "v0.4.0", Replace: &debug.Module{Path: "example.com/fork", Version: "v0.4.1"}}}},
		"(devel)": {Main: debug.Module{Path: module, Version: "(devel)"}, Deps: []*debug.Module{other}},
		"":        {Main: *other},
	} {
		if got := version(info, true); got != want {
			t.Errorf("version %q, want %q", got, want)
		}
	}
	if got := version(nil, false); got != "" {
		t.Errorf("version %q of a program that does not say", got)
	}
}
