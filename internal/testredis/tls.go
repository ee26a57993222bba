package testredis

// A redis-server with TLS, with certificates of a CA that exists as long as the test.
//
// Rules: the server also checks the certificates of its clients. In addition to the port with TLS it has one without
// TLS, which is used to start it.

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// StartTLS is like Start, for a server that also listens at addr with TLS, for clients that use config.
func StartTLS(t testing.TB, args ...string) (s *Server, addr string, config *tls.Config) {
	t.Helper()
	dir := t.TempDir()
	ca := issue(t, filepath.Join(dir, "ca"), nil)
	for _, who := range []string{"server", "client"} {
		issue(t, filepath.Join(dir, who), ca)
	}
	s = launch(t, func(port int) []string {
		return append([]string{
			"--tls-port", strconv.Itoa(busPort(port)),
			"--tls-cert-file", filepath.Join(dir, "server.crt"),
			"--tls-key-file", filepath.Join(dir, "server.key"),
			"--tls-ca-cert-file", filepath.Join(dir, "ca.crt"),
			"--tls-auth-clients", "yes",
		}, args...)
	})
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "client.crt"), filepath.Join(dir, "client.key"))
	require.NoError(t, err)
	roots := x509.NewCertPool()
	roots.AddCert(ca.cert)
	return s, net.JoinHostPort("127.0.0.1", strconv.Itoa(busPort(s.port))), &tls.Config{
		Certificates: []tls.Certificate{pair}, RootCAs: roots, MinVersion: tls.VersionTLS12,
	}
}

// An authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// issue writes a certificate and its key to <path>.crt and <path>.key. It is signed by an authority, or by itself.
func issue(t testing.TB, path string, by *authority) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{CommonName: filepath.Base(path)},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(24 * time.Hour),
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if by == nil {
		template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
		by = &authority{template, key}
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, by.cert, &key.PublicKey, by.key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(raw)
	require.NoError(t, err)
	secret, err := x509.MarshalECPrivateKey(key)
	require.NoError(t, err)
	for file, block := range map[string]*pem.Block{
		path + ".crt": {Type: "CERTIFICATE", Bytes: raw}, path + ".key": {Type: "EC PRIVATE KEY", Bytes: secret},
	} {
		require.NoError(t, os.WriteFile(file, pem.EncodeToMemory(block), 0o600))
	}
	return &authority{cert, key}
}
