package idempotency

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/internal/ident"
	"github.com/interlock-go/interlock/core/observe"
)

func all(string) bool { return true }

func TestRecordsOfDifferentKeysHaveDifferentNames(t *testing.T) {
	seen := map[string]string{}
	for _, c := range [][2]string{{"a", "bc"}, {"ab", "c"}, {"", "abc"}, {"abc", ""}, {"a", "b"}, {"b", "a"}} {
		id := ident.Record(c[0], c[1])
		if other, found := seen[id]; found || len(id) != 43 {
			t.Errorf("%q: %s, as %s", c, id, other)
		}
		seen[id] = fmt.Sprint(c)
	}
}

func TestFingerprintsTellPartsApart(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range [][5]string{
		{"http", "POST", "/a", "b", "c"},
		{"grpc", "POST", "/a", "b", "c"},
		{"http", "PUT", "/a", "b", "c"},
		{"http", "POST", "/ab", "", "c"},
		{"http", "POST", "/a", "bc", ""},
		{"http", "POST", "/a", "", "bc"},
		{"httpP", "OST", "/a", "b", "c"},
		{"http", "POST", "/a", "b", "d"},
	} {
		p := Parts{Method: c[1], Path: c[2], Query: c[3], Body: []byte(c[4])}
		sum := p.sum(c[0], nil)
		if seen[hex.EncodeToString(sum[:])] {
			t.Errorf("%q: as another", c)
		}
		seen[hex.EncodeToString(sum[:])] = true
	}
	long := strings.Repeat("p", 10_000) // does not fit where short ones are gathered
	of := func(path string, routed ...string) [sha256.Size]byte { return (&Parts{Path: path}).sum("http", routed) }
	if first := of(long); of(strings.Clone(long)) != first || of(long+"p") == first {
		t.Error("two long paths have one fingerprint, or one path has two")
	}
	if of("/a", "/b", "") == of("/a", "/c", "") {
		t.Error("two paths behind a router have one fingerprint")
	}
}

func TestAnEnvelopeHoldsAResponse(t *testing.T) {
	for name, r := range map[string]endpoint.Response{
		"empty": {},
		"204":   {Status: 204},
		"full": {
			Status: 201,
			Header: http.Header{
				"Content-Type": {"application/json"}, "Link": {"<a>", "<b>, <c>"}, "Empty": {""}, "None": {},
			},
			Body:    []byte("{\"n\":1}\x00\xff"),
			Trailer: http.Header{"X-Sum": {"abc"}},
		},
		"large": {Status: 200, Body: bytes.Repeat([]byte("x"), 100_000)},
		"grpc":  {Status: 16, Body: []byte{8, 16}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := decode(endpoint.HTTP, string(encode(endpoint.HTTP, r, all)))
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(*got, r) {
				t.Errorf("%+v, want %+v", *got, r)
			}
		})
	}
	a := encode(endpoint.HTTP, endpoint.Response{Header: http.Header{"A": {"1"}, "B": {"2"}, "C": {"3"}}}, all)
	for range 20 {
		if !bytes.Equal(a, encode(endpoint.HTTP, endpoint.Response{Header: http.Header{"C": {"3"}, "B": {"2"}, "A": {"1"}}}, all)) {
			t.Fatal("one response has two envelopes")
		}
	}
}

func TestADamagedEnvelopeIsNoResponse(t *testing.T) {
	good := encode(endpoint.HTTP, endpoint.Response{
		Status: 201, Header: http.Header{"A": {"1", "2"}}, Body: []byte("body"), Trailer: http.Header{"T": {"3"}},
	}, all)
	check := func(what, envelope string) {
		t.Helper()
		if r, err := decode(endpoint.HTTP, envelope); !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: %+v, %v", what, r, err)
		}
	}
	for n := range good {
		check(fmt.Sprint("cut to ", n), string(good[:n]))
		for bit := range 8 {
			bad := bytes.Clone(good)
			bad[n] ^= 1 << bit
			check(fmt.Sprintf("byte %d, bit %d", n, bit), string(bad))
		}
	}
	check("longer", string(good)+"x")
	if _, err := decode(endpoint.GRPC, string(good)); !errors.Is(err, ErrDamaged) {
		t.Errorf("of another protocol: %v", err)
	}
	good[0] = 2
	if _, err := decode(endpoint.HTTP, string(good)); !errors.Is(err, ErrDamaged) || !strings.Contains(observe.RootCause(err).Error(), "version 2") {
		t.Errorf("of another version: %v", err)
	}
}

// FuzzDecode checks that a decoder fails only with ErrDamaged, and that an accepted
// input stays the same when it is encoded and decoded again. The checksum is made
// right, or nothing but checksums would be tested.
func FuzzDecode(f *testing.F) {
	seed := encode(endpoint.HTTP, endpoint.Response{
		Status: 201, Header: http.Header{"A": {"1", "2"}, "B": {}}, Body: []byte("body"), Trailer: http.Header{"T": {"3"}},
	}, all)
	f.Add(seed[:len(seed)-4])
	f.Add([]byte{1, 4, 'h', 't', 't', 'p', 0, 0, 0, 0})
	f.Add([]byte{1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01})
	f.Add([]byte{1, 4, 'h', 't', 't', 'p', 0, 1, 0, 0xff, 0xff, 3, 0, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		if _, err := decode(endpoint.HTTP, string(data)); err != nil && !errors.Is(err, ErrDamaged) {
			t.Error(err)
		}
		sum := crc32.Checksum(data, castagnoli)
		r, err := decode(endpoint.HTTP, string(append(bytes.Clone(data), byte(sum>>24), byte(sum>>16), byte(sum>>8), byte(sum))))
		if err != nil {
			if !errors.Is(err, ErrDamaged) {
				t.Error(err)
			}
			return
		}
		again, err := decode(endpoint.HTTP, string(encode(endpoint.HTTP, *r, all)))
		if err != nil || !reflect.DeepEqual(r, again) {
			t.Errorf("%+v became %+v, %v", r, again, err)
		}
	})
}
