package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"strings"
)

var completionCommand = &command{
	name:  "completion",
	args:  "bash|zsh|fish",
	short: "print the completion of a shell",
	long: `Prints a script that completes commands and flags in a shell. It asks no server,
so it does not complete keys.`,
	examples: [][2]string{
		{"completion bash > /etc/bash_completion.d/interlock", "for bash"},
		{`completion zsh > "${fpath[1]}/_interlock"`, "for zsh"},
		{"completion fish > ~/.config/fish/completions/interlock.fish", "for fish"},
	},
	offline: true,
	words:   []string{"bash", "zsh", "fish"},
	setup: func(*flag.FlagSet) action {
		return func(_ context.Context, c *call) error { return c.complete() }
	},
}

// complete prints the completion of a shell.
func (c *call) complete() error {
	if err := c.want(1, 1); err != nil {
		return err
	}
	switch c.args[0] {
	case "bash":
		c.completeBash(c.stdout)
	case "zsh":
		_, _ = fmt.Fprint(c.stdout, "#compdef interlock\nautoload -U +X bashcompinit && bashcompinit\n")
		c.completeBash(c.stdout)
	case "fish":
		c.completeFish(c.stdout)
	default:
		return usageError("completion: unknown shell %q; bash, zsh and fish are known", c.args[0])
	}
	return nil
}

// flagsOf returns the flags of a command, with the flags of the connection, and whether each
// takes no value.
func (c *call) flagsOf(cmd *command) *flag.FlagSet {
	fs := c.flags(cmd.name)
	cmd.setup(fs)
	if !cmd.offline {
		if fs.Lookup("json") == nil {
			fs.Bool("json", false, "print JSON")
		}
		new(connection).define(fs)
	}
	return fs
}

func (c *call) completeBash(w io.Writer) {
	var names []string
	for _, cmd := range commands {
		names = append(names, cmd.name)
	}
	_, _ = fmt.Fprint(w, "_interlock() {\n"+
		"\tlocal cur=${COMP_WORDS[COMP_CWORD]} i cmd=\n"+
		"\tfor ((i = 1; i < COMP_CWORD; i++)); do\n"+
		"\t\tcase ${COMP_WORDS[i]} in\n"+
		"\t\t"+strings.Join(names, "|")+") cmd=${COMP_WORDS[i]}; break ;;\n"+
		"\t\tesac\n"+
		"\tdone\n"+
		"\tcase $cmd in\n")
	for _, cmd := range commands {
		words := append([]string(nil), cmd.words...)
		c.flagsOf(cmd).VisitAll(func(f *flag.Flag) { words = append(words, "-"+f.Name) })
		_, _ = fmt.Fprintf(w, "\t%s) COMPREPLY=($(compgen -W '%s' -- \"$cur\")) ;;\n", cmd.name, strings.Join(words, " "))
	}
	_, _ = fmt.Fprintf(w, "\t*) COMPREPLY=($(compgen -W '%s' -- \"$cur\")) ;;\n", strings.Join(names, " "))
	_, _ = fmt.Fprint(w, "\tesac\n}\ncomplete -o default -F _interlock interlock\n")
}

func (c *call) completeFish(w io.Writer) {
	quote := strings.NewReplacer(`\`, `\\`, `'`, `\'`)
	for _, cmd := range commands {
		_, _ = fmt.Fprintf(w, "complete -c interlock -n __fish_use_subcommand -f -a %s -d '%s'\n", cmd.name, quote.Replace(cmd.short))
		seen := "-n '__fish_seen_subcommand_from " + cmd.name + "'"
		for _, word := range cmd.words {
			_, _ = fmt.Fprintf(w, "complete -c interlock %s -f -a %s\n", seen, word)
		}
		c.flagsOf(cmd).VisitAll(func(f *flag.Flag) {
			value, usage := flag.UnquoteUsage(f)
			takes := ""
			if value != "" {
				takes = "-r "
			}
			_, _ = fmt.Fprintf(w, "complete -c interlock %s -o %s %s-d '%s'\n", seen, f.Name, takes, quote.Replace(usage))
		})
	}
}
