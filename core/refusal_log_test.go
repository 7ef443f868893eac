package core_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"syscall"
	"testing"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/reason"
)

func TestRefusalIsLoggedWithoutAddresses(t *testing.T) {
	dial := &net.OpError{
		Op: "dial", Net: "tcp", Addr: &net.TCPAddr{IP: net.IPv4(10, 0, 0, 7), Port: 6379}, Err: syscall.ECONNREFUSED,
	}
	for want, err := range map[string]error{
		"connection refused": fmt.Errorf("%w: %q: %w", core.ErrUnavailable, "account/42", dial),
		"no such host": fmt.Errorf("%w: %w", core.ErrUnavailable,
			&net.DNSError{Err: "no such host", Name: "redis.internal", Server: "10.0.0.2:53"}),
		"MOVED 1 (address)": fmt.Errorf("%w: %w", core.ErrUnavailable, errors.New("MOVED 1 10.0.0.7:6379")),
		"lookup (address) on (address): no such host": fmt.Errorf("%w: %w", core.ErrUnavailable,
			errors.New("(redis.internal:6379: dial tcp: lookup redis.internal on 10.0.0.2:53: no such host)")),
		"dial (address) and (address)": fmt.Errorf("%w: %w", core.ErrUnavailable, errors.New("dial [fe80::7]:6379 and redis.internal:6379")),
	} {
		r := &core.Refusal{Reason: reason.Unavailable, Rule: "account/{id}", Err: err}
		var logged bytes.Buffer
		slog.New(slog.NewTextHandler(&logged, nil)).Info("x", "refusal", r)
		encoded, _ := json.Marshal(r)
		for _, text := range []string{r.LogError().Error(), fmt.Sprintf("%v %+v %s", r, r, r), logged.String()} {
			if !strings.Contains(text, "unavailable") || !strings.Contains(text, want) {
				t.Errorf("%q; want %q in it", text, want)
			}
		}
		for _, text := range []string{r.LogError().Error(), fmt.Sprintf("%+v", r), logged.String(), string(encoded)} {
			if strings.Contains(text, "10.0.0") || strings.Contains(text, "redis.internal") || strings.Contains(text, "account/42") {
				t.Errorf("%q", text)
			}
		}
		if !errors.Is(r.LogError(), core.ErrUnavailable) || !errors.Is(r.LogError(), err) {
			t.Errorf("%v does not unwrap", r.LogError())
		}
	}
}
