//go:build long

package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/interlock-go/interlock/internal/redistest"
)

// certificates writes an authority and a certificate of it, for 127.0.0.1 and for a
// client, and returns the paths of the three files.
func certificates(t *testing.T) (ca, cert, key string) {
	t.Helper()
	dir := t.TempDir()
	write := func(name, kind string, der []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	issue := func(name string, change func(c *x509.Certificate), parent *x509.Certificate, by *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey) {
		own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		c := &x509.Certificate{
			SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
			NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), BasicConstraintsValid: true,
		}
		change(c)
		if parent == nil {
			parent, by = c, own
		}
		der, err := x509.CreateCertificate(rand.Reader, c, parent, &own.PublicKey, by)
		if err != nil {
			t.Fatal(err)
		}
		parsed, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		return parsed, own
	}
	authority, by := issue("authority", func(c *x509.Certificate) {
		c.IsCA, c.KeyUsage = true, x509.KeyUsageCertSign
	}, nil, nil)
	leaf, own := issue("redis", func(c *x509.Certificate) {
		c.IPAddresses, c.KeyUsage = []net.IP{net.IPv4(127, 0, 0, 1)}, x509.KeyUsageDigitalSignature
		c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	}, authority, by)
	der, err := x509.MarshalPKCS8PrivateKey(own)
	if err != nil {
		t.Fatal(err)
	}
	return write("ca.pem", "CERTIFICATE", authority.Raw), write("cert.pem", "CERTIFICATE", leaf.Raw), write("key.pem", "PRIVATE KEY", der)
}

func TestTLSWithACertificateOfTheClient(t *testing.T) {
	ca, cert, key := certificates(t)
	srv := redistest.Start(t)
	admin := srv.Client(t)
	for _, setting := range [][2]string{
		{"tls-ca-cert-file", ca}, {"tls-cert-file", cert}, {"tls-key-file", key}, {"tls-auth-clients", "yes"},
	} {
		if err := admin.ConfigSet(t.Context(), setting[0], setting[1]).Err(); err != nil {
			if strings.Contains(err.Error(), "Unknown option") {
				t.Fatal("this redis-server is built without TLS: install a server with TLS, or name it by INTERLOCK_REDIS_SERVER")
			}
			t.Fatal(setting, err)
		}
	}
	var port string
	redistest.Eventually(t, 10*time.Second, func(ctx context.Context) error { // another process may take the port
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		_, port, _ = net.SplitHostPort(l.Addr().String())
		_ = l.Close()
		return admin.ConfigSet(ctx, "tls-port", port).Err()
	})
	addr := "127.0.0.1:" + port
	s := &servers{t: t, rdb: admin, args: []string{"-addr", addr, "-cacert", ca, "-cert", cert, "-key", key}}
	s.lock(s.process(), "k")
	if r := s.want(0, "ls"); !strings.Contains(r.out, "\nk ") {
		t.Errorf("\n%s", r.out)
	}
	s.want(0, "-url", "rediss://"+addr, "inspect", "k")
	for name, args := range map[string][]string{
		"no certificate":    {"-addr", addr, "-cacert", ca},
		"unknown authority": {"-addr", addr, "-tls"},
		"no TLS":            {"-addr", addr},
	} {
		s.args = args
		if r := s.want(exitFailed, "ls"); r.stderr == "" {
			t.Errorf("%s: %+v", name, r)
		}
	}
}
