package redistest

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

// Rights returns the rules of the user in docs/operations.md, and the rights of some rows of the
// table below it, each named by its first cell or the beginning of it. It reads the page from the
// root of the repository, two directories above the package under test.
func Rights(tb testing.TB, rows ...string) (rules []string) {
	tb.Helper()
	_, after, _ := strings.Cut(operations(tb), "ACL SETUSER interlock on ")
	line, _, _ := strings.Cut(after, "\n")
	rules = strings.Fields(line)
	if len(rules) == 0 {
		tb.Fatal("docs/operations.md has no ACL rule")
	}
	for _, row := range rows {
		rules = append(rules, RightsFor(tb, row)...)
	}
	return rules
}

// RightsFor returns the rights of one row alone.
func RightsFor(tb testing.TB, row string) (rights []string) {
	tb.Helper()
	_, table, _ := strings.Cut(operations(tb), "| for | also |")
	for line := range strings.Lines(table) {
		// A pipe inside a cell is escaped.
		cells := strings.Split(strings.ReplaceAll(line, `\|`, "\x00"), "|")
		if len(cells) != 4 || !strings.Contains(cells[1], row) {
			continue
		}
		for _, f := range strings.Fields(strings.ReplaceAll(cells[2], "`", " ")) {
			if strings.HasPrefix(f, "+") {
				rights = append(rights, strings.ReplaceAll(f, "\x00", "|"))
			}
		}
		return rights
	}
	tb.Fatalf("docs/operations.md has no rights for %s", row)
	return nil
}

func operations(tb testing.TB) string {
	tb.Helper()
	text, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		tb.Fatal(err)
	}
	return string(text)
}

// SetUser makes a user with the password "password", or changes it to these rules.
func SetUser(ctx context.Context, rdb *redis.Client, name string, rules ...string) error {
	args := []any{"ACL", "SETUSER", name, "reset", "on", ">password"}
	for _, r := range rules {
		args = append(args, r)
	}
	return rdb.Do(ctx, args...).Err()
}

// Denials returns the server's log of refused commands.
func (s *Server) Denials(tb testing.TB) (denied []string) {
	tb.Helper()
	s.must(tb, func(ctx context.Context, rdb *redis.Client) error {
		entries, err := rdb.Do(ctx, "ACL", "LOG").Slice()
		for _, e := range entries {
			denied = append(denied, fmt.Sprint(e))
		}
		return err
	})
	return denied
}
