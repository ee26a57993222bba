package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/relock-go/relock/internal/testredis"
)

// tlsServer starts a server with TLS, and returns the directory with the files of testredis.StartTLS.
func tlsServer(t *testing.T, args ...string) (s *testredis.Server, addr, dir string) {
	t.Helper()
	s, addr, _ = testredis.StartTLS(t, args...)
	settings, err := s.Client().ConfigGet(ctx, "tls-ca-cert-file").Result()
	must(t, err)
	return s, addr, filepath.Dir(settings["tls-ca-cert-file"])
}

func TestFlagsForTLS(t *testing.T) {
	s, addr, dir := tlsServer(t)
	must(t, newClient(t, s.Client()).NewLock("orders").Lock(ctx))
	ca, cert, key := filepath.Join(dir, "ca.crt"), filepath.Join(dir, "client.crt"), filepath.Join(dir, "client.key")
	for _, args := range [][]string{
		{"--url", "rediss://" + addr, "--tls-ca", ca, "--tls-cert", cert, "--tls-key", key},
		{"--addr", addr, "--tls-ca", ca, "--tls-cert", cert, "--tls-key", key},
		{"--addr", addr, "--tls-insecure", "--tls-cert=" + cert, "--tls-key=" + key},
	} {
		out := prints(t, "127.0.0.1:1", append(args, "list")...)
		assert.Contains(t, out, "orders")
	}
	for want, args := range map[string][]string{
		"the one needs the other":          {"--tls-cert", cert},
		"--tls-ca: open ":                  {"--tls-ca", filepath.Join(dir, "none")},
		"--tls-cert and --tls-key: open /": {"--tls-cert", filepath.Join(dir, "none"), "--tls-key", key},
	} {
		_, errs, status := ctl(t, addr, "", append(args, "list")...)
		assert.Equal(t, statusUsage, status, args)
		assert.Contains(t, errs, want, args)
	}
}

// What is wrong with TLS is told in the words of crypto/tls.
func TestCauseOfATLSFailureIsNamed(t *testing.T) {
	t.Parallel()
	s, addr, dir := tlsServer(t)
	ca := filepath.Join(dir, "ca.crt")
	_, _, other := tlsServer(t)
	for _, c := range []struct{ want, args string }{
		{": no answer within 5s; perhaps only one side uses TLS\n", "--url rediss://" + s.Addr()},
		{"x509: certificate signed by unknown authority\n", "--url rediss://" + addr},
		// The server may close the connection before its answer was read.
		{"", "--addr " + addr},
		{"", "--addr " + addr + " --tls-ca " + ca + " --tls-cert " + other + "/client.crt --tls-key " + other + "/client.key"},
	} {
		_, errs, status := ctl(t, "127.0.0.1:1", "", append(strings.Fields(c.args), "run", "x", "--", "true")...)
		assert.Equal(t, statusNotAcquired, status, c.args)
		assert.Contains(t, errs, "cannot reach the Redis", c.args)
		assert.Contains(t, errs, c.want, c.args)
	}
}

// A user who lacks a permission is told where to look for it.
func TestMissingPermissionsLeadToTheirPage(t *testing.T) {
	s := testredis.Start(t)
	rdb := s.Client()
	must(t, newClient(t, rdb).NewLock("orders").Lock(ctx))
	must(t, rdb.Do(ctx, "acl", "setuser", "clerk", "on", ">pw", "+ping", "+info").Err())
	for status, args := range map[int]string{statusFailed: "list", statusNotAcquired: "run x -- true"} {
		args = "--url redis://clerk:pw@" + s.Addr() + " " + args
		_, errs, got := ctl(t, s.Addr(), "", strings.Fields(args)...)
		assert.Equal(t, status, got, errs)
		assert.Contains(t, errs, "NOPERM")
		assert.Contains(t, errs, permissions)
	}
}
