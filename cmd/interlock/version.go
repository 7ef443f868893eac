package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"runtime"
	"runtime/debug"
)

var versionCommand = &command{
	name:     "version",
	short:    "print the version of the tool",
	long:     "Prints the version of the tool, the commit that it was built from if that is known, and the version of Go.",
	examples: [][2]string{{"version", "of this program"}},
	offline:  true,
	setup: func(*flag.FlagSet) action {
		return func(_ context.Context, c *call) error {
			if err := c.want(0, 0); err != nil {
				return err
			}
			_, err := fmt.Fprintln(c.stdout, version())
			return err
		}
	},
}

// version says what was built.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{}
	}
	commit := ""
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			commit = " (" + s.Value[:min(len(s.Value), 12)] + ")"
		}
	}
	return fmt.Sprintf("interlock %s%s %s %s/%s", cmp.Or(info.Main.Version, "(devel)"), commit, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
