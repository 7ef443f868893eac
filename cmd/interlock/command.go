package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/cmd/interlock/internal/run"
	"github.com/interlock-go/interlock/internal/display"
)

// command is a command of the tool.
type command struct {
	name  string
	args  string // how its arguments are named in the help: "KEY"
	short string // one line, for the list of commands
	long  string // its purpose, and its exit codes if it has some
	// examples are command lines, without the tool's name, each with a line of explanation.
	examples [][2]string
	// dashed says that the command has one argument, and that what follows it, or "--", goes
	// into call.after.
	dashed bool
	// ownSignals says that the command handles SIGINT and SIGTERM itself. The context
	// of other commands ends with them.
	ownSignals bool
	// wrongLine, unless zero, is the exit code for a wrong command line in place of
	// exitUsage.
	wrongLine int
	// brief says that the command asks little, and is to end soon where the server does not
	// answer.
	brief bool
	// lists, unless empty, is a first argument that makes the command read much.
	lists string
	// records says that an argument may be the hash of a record.
	records bool
	// offline says that the command needs no server, and takes no flags for it.
	offline bool
	// words are the first arguments that completion offers.
	words []string
	// setup defines the command's own flags, and returns the function that carries it out.
	setup func(fs *flag.FlagSet) action
}

// action carries a command out. Its error may be an exitError.
type action func(ctx context.Context, c *call) error

// call is one call of the tool.
type call struct {
	cmd    *command
	args   []string // of the command
	after  []string // rest after the argument of a dashed command
	conn   *connection
	json   bool
	action action
	rdb    redis.UniversalClient // of fleet, on Redis
	close  func()                // of fleet

	patience patience

	stdout, stderr io.Writer
}

// parse reads a command line, as parseLine does, and prefers the servers of its flags.
func (c *call) parse(args []string) (*command, error) {
	cmd, err := c.parseLine(args)
	c.conn.prefer()
	return cmd, err
}

// parseLine reads a command line. It returns no command if help was asked for, which it has
// printed then. Flags may stand before and after arguments; the flags of the connection
// before the command, too.
func (c *call) parseLine(args []string) (*command, error) {
	global := c.flags("interlock")
	c.conn.define(global)
	global.BoolVar(&c.json, "json", false, "print JSON")
	switch err := global.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		c.help(c.stdout, global)
		return nil, nil
	case err != nil:
		return nil, usageError("%w; interlock -h lists what there is", err)
	}
	c.conn.take(global)
	if args = global.Args(); len(args) == 0 {
		c.help(c.stderr, global)
		return nil, &exitError{code: exitUsage}
	}
	if args[0] == "help" {
		if len(args) == 1 {
			c.help(c.stdout, global)
			return nil, nil
		}
		args = []string{args[1], "-h"}
	}
	for _, cmd := range commands {
		if cmd.name == args[0] {
			return c.parseCommand(cmd, args[1:])
		}
	}
	return nil, usageError("unknown command %q; interlock -h lists the commands", args[0])
}

// parseCommand reads the arguments after the name of a command.
func (c *call) parseCommand(cmd *command, args []string) (*command, error) {
	own := c.flags(cmd.name)
	c.cmd, c.action = cmd, cmd.setup(own)
	if !cmd.offline && own.Lookup("json") == nil {
		own.BoolVar(&c.json, "json", c.json, "print JSON")
	}
	all := c.flags(cmd.name)
	own.VisitAll(func(f *flag.Flag) { all.Var(f.Value, f.Name, f.Usage) })
	if !cmd.offline {
		c.conn.define(all)
	}
	defer func() { c.conn.take(all) }()
	for {
		switch err := all.Parse(args); {
		case errors.Is(err, flag.ErrHelp):
			cmd.help(c.stdout, own)
			return nil, nil
		case err != nil && c.takesRecord(cmd, err, args, all.Args()):
			args = all.Args()
			continue
		case err != nil && strings.HasPrefix(err.Error(), notDefined):
			return nil, usageError("%s: %w; interlock %s -h lists its flags; -- goes before an argument that begins with a dash", cmd.name, err, cmd.name)
		case err != nil:
			return nil, usageError("%s: %w; interlock %s -h lists its flags", cmd.name, err, cmd.name)
		}
		rest := all.Args()
		if parsed := len(args) - len(rest); parsed > 0 && args[parsed-1] == "--" {
			if !cmd.dashed {
				c.args = append(c.args, rest...)
				return cmd, nil
			}
			if len(c.args) == 0 && len(rest) > 0 { // a key that begins with a dash
				c.args, rest = rest[:1], rest[1:]
				if len(rest) > 0 && rest[0] == "--" {
					rest = rest[1:]
				}
			}
			c.after = rest
			return cmd, nil
		}
		if len(rest) == 0 {
			return cmd, nil
		}
		if cmd.dashed && len(c.args) == 1 {
			c.after = rest
			return cmd, nil
		}
		c.args, args = append(c.args, rest[0]), rest[1:]
	}
}

// notDefined begins the error of package flag about an unknown flag.
const notDefined = "flag provided but not defined"

// takesRecord takes the unknown flag before rest for an argument if it has the form of a record's hash: one
// hash in 64 begins with a dash.
func (c *call) takesRecord(cmd *command, err error, args, rest []string) bool {
	if !cmd.records || !strings.HasPrefix(err.Error(), notDefined) {
		return false
	}
	arg := args[len(args)-len(rest)-1]
	if recordHash.MatchString(arg) {
		c.args = append(c.args, arg)
		return true
	}
	return false
}

// flags returns a set of flags that prints nothing by itself.
func (c *call) flags(name string) *flag.FlagSet {
	fs := flag.NewFlagSet(name, flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	return fs
}

// durationVar defines a flag that is a duration.
func durationVar(fs *flag.FlagSet, d *time.Duration, name string, value time.Duration, usage string) {
	if *d = value; value != 0 {
		usage += " (default " + value.String() + ")"
	}
	fs.Func(name, usage, func(s string) (err error) {
		*d, err = run.ParseDuration(s)
		return err
	})
}

// want returns an error unless the command has between least and most arguments.
func (c *call) want(least, most int) error {
	if n := len(c.args); n < least || n > most {
		return usageError("%s: %d arguments; usage: interlock %s [flags] %s", c.cmd.name, n, c.cmd.name, c.cmd.args)
	}
	return nil
}

// key returns the key that the first argument names, as the tool shows it.
func (c *call) key() (string, error) {
	key, err := display.Parse(c.args[0])
	if err == nil && key == "" {
		err = errors.New("the key is empty")
	}
	if err != nil {
		return "", usageError("%s: %w", c.cmd.name, err)
	}
	return key, nil
}

// onlyKey is key, for a command with one argument.
func (c *call) onlyKey() (string, error) {
	if err := c.want(1, 1); err != nil {
		return "", err
	}
	return c.key()
}

// help prints the list of commands, and the flags of the connection.
func (c *call) help(w io.Writer, global *flag.FlagSet) {
	_, _ = fmt.Fprint(w, "interlock shows and repairs locks in Redis and PostgreSQL.\n\nusage: interlock [flags] COMMAND [flags] [arguments]\n\ncommands:\n")
	tab := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, cmd := range commands {
		_, _ = fmt.Fprintf(tab, "  %s\t%s\n", strings.TrimSpace(cmd.name+" "+cmd.args), cmd.short)
	}
	_ = tab.Flush()
	_, _ = fmt.Fprint(w, "\nflags, before or after the command:\n")
	printFlags(w, global)
	_, _ = fmt.Fprint(w, "\n"+connectionHelp+"\nexit codes: 0 done, 1 failed, 2 wrong command line, 3 the answer is no, "+
		"75 the lock was not to be had in time, 130 stopped by a signal.\n"+
		"interlock COMMAND -h describes a command, with examples.\n")
}

// help prints the manual of a command.
func (cmd *command) help(w io.Writer, own *flag.FlagSet) {
	_, _ = fmt.Fprintf(w, "usage: interlock %s\n\n%s\n", strings.TrimSpace(cmd.name+" [flags] "+cmd.args), strings.TrimSpace(cmd.long))
	flags := 0
	own.VisitAll(func(*flag.Flag) { flags++ })
	if flags > 0 {
		_, _ = fmt.Fprint(w, "\nflags:\n")
		printFlags(w, own)
	}
	if len(cmd.examples) > 0 {
		_, _ = fmt.Fprint(w, "\nexamples:\n")
		for _, e := range cmd.examples {
			_, _ = fmt.Fprintf(w, "  # %s\n  interlock %s\n", e[1], e[0])
		}
	}
	if !cmd.offline {
		_, _ = fmt.Fprint(w, "\ninterlock -h lists the flags of the connection.\n")
	}
}

// printFlags lists flags, one in a line.
func printFlags(w io.Writer, fs *flag.FlagSet) {
	tab := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fs.VisitAll(func(f *flag.Flag) {
		value, usage := flag.UnquoteUsage(f)
		if f.DefValue != "" && f.DefValue != "0" && f.DefValue != "false" && f.DefValue != "0s" {
			usage += " (default " + f.DefValue + ")"
		}
		_, _ = fmt.Fprintf(tab, "  %s\t%s\n", strings.TrimSpace("-"+f.Name+" "+value), usage)
	})
	_ = tab.Flush()
}
