package display_test

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/interlock-go/interlock/internal/display"
)

func TestTextIsShownAsItIsOnlyIfItIsHarmless(t *testing.T) {
	for text, want := range map[string]string{
		"":                     "",
		"account/42":           "account/42",
		"Straße 7, 北京 👍":       "Straße 7, 北京 👍",
		"<script>&\"'":         "<script>&\"'",
		"\x00\t\n\r\x1b[2J":    `\x00\t\n\r\x1b[2J`,
		"\u009b31m\u0085":      `\u009b31m\u0085`,
		"\u202eevil\u2066":     `\u202eevil\u2066`,
		"\u200b\u200d\ufeff":   `\u200b\u200d\ufeff`,
		"\xff\xfea\xc3":        `\xff\xfea\xc3`,
		"\ufffd":               "\ufffd",
		`a\b`:                  `a\\b`,
		`\x1b`:                 `\\x1b`,
		"\u2028\u00a0\u3000":   `\u2028\u00a0\u3000`,
		"\U000e0001\U000f0000": `\U000e0001\U000f0000`,
		"\u3164\u115f":         `\u3164\u115f`,
		"\xed\xa0\x80":         `\xed\xa0\x80`,
	} {
		if got := display.Text(text); got != want {
			t.Errorf("%q is shown as %q; want %q", text, got, want)
		}
	}
}

func FuzzText(f *testing.F) {
	for _, s := range []string{"", "a", `\`, "\x1b]0;x\a", "\u202e", "\xff", "\ufffd", `\x41`, "é", "\u0301"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		shown := display.Text(s)
		if !utf8.ValidString(shown) {
			t.Errorf("%q is shown as %q, which is no UTF-8", s, shown)
		}
		for _, r := range shown {
			if r != ' ' && !unicode.IsGraphic(r) || unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp, unicode.Co, unicode.Cs) {
				t.Errorf("%q is shown with %U", s, r)
			}
		}
		if back, err := display.Parse(shown); err != nil || back != s {
			t.Errorf("%q is shown as %q, which is read as %q: %v", s, shown, back, err)
		}
		// JSON has nothing to replace in it.
		text, err := json.Marshal(shown)
		var back string
		if err != nil || json.Unmarshal(text, &back) != nil || back != shown {
			t.Errorf("%q is %s in JSON", shown, text)
		}
	})
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{`\`, `\q`, `\x4`, `a\n`, `\"`, `\'`, `\400`, `\U00110000`, `\ud800`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		text, err := display.Parse(s)
		if err == nil && !strings.Contains(s, `\`) && text != s {
			t.Errorf("%q is read as %q", s, text)
		}
	})
}

func TestAnEscapeThatIsNoneIsAnError(t *testing.T) {
	for _, s := range []string{`\`, `a\q`, `\x4`, `\u12`, `\400`, `\ud800`} {
		if text, err := display.Parse(s); err == nil || !strings.Contains(err.Error(), `\\`) {
			t.Errorf("%q is read as %q: %v", s, text, err)
		}
	}
}
