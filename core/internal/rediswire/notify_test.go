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
		"", " ", "1", "1 ", "1 interlock:{k}", "-1 interlock:{k}", "=1@2+ interlock:{k}", "^1 interlock:{k}",
		"1  interlock:{k}", "1 interlock:{}", "1 interlock:{k}:free", "1 other:{k}", "1 interlock:{a}b}", `1 interlock:{\}`,
		"18446744073709551616 interlock:{k}", "+1 interlock:{k}", "1! interlock:{k}", "\x00\xff {",
	} {
		f.Add("k", text)
	}
	f.Fuzz(func(t *testing.T, key, text string) {
		if got, owner, ok := s.newsOf("id", text); ok {
			number, name, _ := strings.Cut(text, " ")
			if owner != driver.Attentive("id:"+number) || s.names.lock(got) != name {
				t.Errorf("%q is read as news about %q and %q", text, got, owner)
			}
		}
		if key == "" {
			return // is no key
		}
		channel, message, ok := s.news(key, driver.Attentive("id:17"))
		got, owner, read := s.newsOf("id", message)
		if !ok || !read || got != key || owner != driver.Attentive("id:17") || channel != "interlock:wanted:id" {
			t.Errorf("news about %q is %q on %q, and read as %q and %q", key, message, channel, got, owner)
		}
		if !s.names.ofLocker(channel) || s.names.ofLocker(s.names.channel(s.names.lock(key))) {
			t.Errorf("%q and the channel of a lock are taken for each other", channel)
		}
	})
}
