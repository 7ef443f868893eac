package main

import (
	"context"
	"flag"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/interlock-go/interlock/internal/version"
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
			_, err := fmt.Fprintln(c.stdout, built())
			return err
		}
	},
}

// built describes the build.
func built() string {
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
	return fmt.Sprintf("interlock %s%s %s %s/%s", version.Module(), commit, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
