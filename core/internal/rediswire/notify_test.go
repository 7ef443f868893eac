package rediswire

import (
	"strings"
	"testing"

	"github.com/interlock-go/interlock/core/driver"
)

// FuzzNews checks that a message on the channel of a locker is read as it was meant or not at
// all, for every text.
func FuzzNews(f *testing.F) {
	s := &Store{names: namesOf("interlock", 3)}
	for _, text := range []string{
		"", " ", "1", "1 ", "1 interlock:{k}", "-1 interlock:{k}", "=1@2+ interlock:{k}", "=7+ interlock:{k}", "0 interlock:{k}", ":id,. interlock:{k}", ":*1,+id interlock:{k}", ": interlock:{k}", "^1 interlock:{k}",
		"1  interlock:{k}", "1 interlock:{}", "1 interlock:{k}:free", "1 other:{k}", "1 interlock:{a}b}", `1 interlock:{\}`,
		"18446744073709551616 interlock:{k}", "+1 interlock:{k}", "1! interlock:{k}", "\x00\xff {",
	} {
		f.Add("k", text)
	}
	f.Fuzz(func(t *testing.T, key, text string) {
		if c, ok := s.callOf("id", text); ok {
			what, name, _ := strings.Cut(text, " ")
			is := map[driver.News]string{driver.Wanted: strings.TrimSuffix(strings.TrimPrefix(c.Owner, "id:"), "!"), driver.Displaced: what}
			if s.names.lock(c.Key) != name || is[c.What] != what && what[0] != ':' && what[0] != '=' {
				t.Errorf("%q is read as %+v", text, c)
			}
		}
		if key == "" {
			return // is no key
		}
		channel, message, ok := s.news(key, driver.Attentive("id:17"))
		c, read := s.callOf("id", message)
		if want := (driver.Call{What: driver.Wanted, Key: key, Owner: driver.Attentive("id:17")}); !ok || !read || c != want || channel != "interlock:wanted:id" {
			t.Errorf("news about %q is %q on %q, and read as %+v; want %+v", key, message, channel, c, want)
		}
		if !s.names.ofLocker(channel) || s.names.ofLocker(s.names.channel(s.names.lock(key))) {
			t.Errorf("%q and the channel of a lock are taken for each other", channel)
		}
	})
}
