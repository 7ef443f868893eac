//go:build long && linux

package postgres_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	mathrand "math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/pgstore"
	"github.com/interlock-go/interlock/trust/internal/pgtest"
)

// selfSigned writes a certificate for an address and its key, which the server can read.
func selfSigned(t *testing.T, dir, name string, ip net.IP) (cert, key string) {
	t.Helper()
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IPAddresses: []net.IP{ip}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &own.PublicKey, own)
	secret, failed := x509.MarshalPKCS8PrivateKey(own)
	if err = errors.Join(err, failed); err != nil {
		t.Fatal(err)
	}
	write := func(suffix, kind string, der []byte) string {
		return give(t, dir, name+suffix, string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})))
	}
	return write(".pem", "CERTIFICATE", der), write(".key", "PRIVATE KEY", secret)
}

// give writes a file of the server.
func give(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	err := os.WriteFile(path, []byte(text), 0o600)
	who, failed := pgtest.RunAs()
	if err = errors.Join(err, failed); err == nil && who != nil {
		err = os.Chown(path, int(who.Uid), int(who.Gid))
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// The mistakes that people make when they connect the tool. None of them is waited for.
func TestTheToolNamesWhyItGetsNoConnection(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "interlock")
	if err == nil {
		err = os.Chmod(dir, 0o755) //nolint:gosec // the server is another user
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	tool := filepath.Join(dir, "interlock")
	if said, err := exec.CommandContext(t.Context(), "go", "build", "-C", "../../cmd/interlock", "-o", tool, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	ip := net.IPv4(127, byte(2+mathrand.N(250)), byte(mathrand.N(250)), byte(2+mathrand.N(250))) // the port is the usual one
	cert, key := selfSigned(t, dir, "server", ip)
	another, _ := selfSigned(t, dir, "another", ip)
	hba := give(t, dir, "hba", "local all all trust\nhostssl all all all scram-sha-256\n")
	srv := pgtest.Start(t, "listen_addresses="+ip.String(), "ssl=on", "ssl_cert_file="+cert, "ssl_key_file="+key, "hba_file="+hba)
	db := srv.Open(t)
	store, err := pgstore.New(db)
	if err == nil {
		err = errors.Join(store.Migrate(t.Context()), store.Close())
	}
	for _, role := range []string{"service", "unused"} {
		_, failed := db.ExecContext(t.Context(), "CREATE ROLE "+role+" LOGIN PASSWORD 'correct horse'")
		err = errors.Join(err, failed)
	}
	_, failed := db.ExecContext(t.Context(), "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO service")
	if err = errors.Join(err, failed); err != nil {
		t.Fatal(err)
	}
	url := func(user, database, options string) string {
		return fmt.Sprintf("postgres://%s@%s/%s%s", user, ip, database, options)
	}
	for name, c := range map[string]struct {
		url, password string
		flags         []string
		says          string // nothing: the command runs
	}{
		"TLS":                           {url("service", "postgres", ""), "correct horse", []string{"-tls", "-cacert", cert}, ""},
		"TLS, with another authority":   {url("service", "postgres", ""), "correct horse", []string{"-tls", "-cacert", another}, "certificate"},
		"TLS that the URL switches off": {url("service", "postgres", "?sslmode=disable"), "correct horse", []string{"-cacert", cert}, ""},
		"no TLS":                        {url("service", "postgres", "?sslmode=disable"), "correct horse", nil, "no encryption"},
		"a wrong password":              {url("service", "postgres", ""), "a lame horse", []string{"-cacert", cert}, "password authentication failed"},
		"a role that is not there":      {url("nobody", "postgres", ""), "correct horse", []string{"-cacert", cert}, "password authentication failed"},
		"a database that is not there":  {url("service", "missing", ""), "correct horse", []string{"-cacert", cert}, `database "missing" does not exist`},
		"a role without rights":         {url("unused", "postgres", ""), "correct horse", []string{"-cacert", cert}, "permission denied"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute) // less than -wait
			defer cancel()
			args := append([]string{"-postgres", c.url}, c.flags...)
			run := exec.CommandContext(ctx, tool, append(args, "run", "-wait", "1h", name, "--", "echo", "ran")...)
			run.Env = append(os.Environ(), "INTERLOCK_PASSWORD="+c.password)
			said, err := run.CombinedOutput()
			if ran := strings.Contains(string(said), "ran\n"); ran != (c.says == "") || ran != (err == nil) || !strings.Contains(string(said), c.says) ||
				strings.Contains(string(said), "horse") || ctx.Err() != nil {
				t.Errorf("%v: %s; want %q, and no wait", err, said, c.says)
			}
		})
	}
}
