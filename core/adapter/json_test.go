package adapter_test

import (
	"testing"

	"github.com/interlock-go/interlock/core/adapter"
)

func TestOneResourceInJSONIsOneParameter(t *testing.T) {
	for document, want := range map[string]string{
		`{"id":"42"}`:                  "42",
		`{"id":42}`:                    "42",
		`{"id":42.0}`:                  "42",
		`{"id":4.2e1}`:                 "42",
		`{"id":420e-1}`:                "42",
		`{"id":-0}`:                    "0",
		`{"id":-0.0}`:                  "0",
		`{"id":0}`:                     "0",
		`{"id":-7}`:                    "-7",
		`{"id":9007199254740991}`:      "9007199254740991",
		`{"id":"9007199254740993"}`:    "9007199254740993",
		`{"id":"042"}`:                 "042", // as in a path: a Form makes it 42
		`{"id":true}`:                  "true",
		`{"id":"a/b\u0041"}`:           "a/bA",
		`{"id":"first","id":"last"}`:   "error",
		`{"id":null}`:                  "",
		`{"id":""}`:                    "",
		`{"other":1}`:                  "",
		`{}`:                           "",
		``:                             "",
		`[1]`:                          "",
		`{"id":42.5}`:                  "error",
		`{"id":9007199254740992}`:      "error",
		`{"id":-9007199254740993}`:     "error",
		`{"id":1e400}`:                 "error",
		`{"id":{"a":1}}`:               "error",
		`{"id":[42]}`:                  "error",
		`{"ID":42}`:                    "error", // encoding/json takes it for id
		`{"id":42,"Id":43}`:            "error",
		`{"id":42,"other":`:            "error",
		`{"id":`:                       "error",
		`{"id":42,"account":{"ID":1}}`: "42",
	} {
		got, err := adapter.JSONParam([]byte(document), "id")
		if err != nil {
			got = "error"
		}
		if got != want {
			t.Errorf("%s: %q, %v; want %q", document, got, err, want)
		}
	}
}

func TestAParameterOfANestedObject(t *testing.T) {
	document := []byte(`{"account":{"id":42,"owner":{"id":"a"}},"account.id":"dotted","list":[{"id":1}]}`)
	for path, want := range map[string]string{"account.id": "42", "account.owner.id": "a", "account.none.id": "", "list.id": ""} {
		if got, err := adapter.JSONParam(document, path); got != want || err != nil {
			t.Errorf("%s: %q, %v; want %q", path, got, err, want)
		}
	}
	if got, err := adapter.JSONParam(document, "account.ID"); err == nil {
		t.Errorf("another case: %q", got)
	}
}
