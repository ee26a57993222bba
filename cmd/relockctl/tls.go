package main

// The flags for TLS: each of them turns it on.

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"

	"github.com/redis/go-redis/v9"
)

// A tlsFiles has the flags for TLS.
type tlsFiles struct {
	ca, cert, key string
	insecure      bool
}

// addTo turns TLS on if a flag asks for it.
func (f tlsFiles) addTo(o *redis.Options) error {
	if f == (tlsFiles{}) {
		return nil
	}
	if (f.cert == "") != (f.key == "") {
		return badUsage("--tls-cert and --tls-key: the one needs the other")
	}
	if o.TLSConfig == nil {
		host, _, _ := net.SplitHostPort(o.Addr)
		o.TLSConfig = &tls.Config{ServerName: host, MinVersion: tls.VersionTLS12}
	}
	o.TLSConfig.InsecureSkipVerify = f.insecure
	if f.ca != "" {
		text, err := os.ReadFile(f.ca)
		if err != nil {
			return badUsage("--tls-ca: %v", err)
		}
		o.TLSConfig.RootCAs = x509.NewCertPool()
		if !o.TLSConfig.RootCAs.AppendCertsFromPEM(text) {
			return badUsage("--tls-ca: %s has no certificate in the form of PEM", quote(f.ca))
		}
	}
	if f.cert != "" {
		pair, err := tls.LoadX509KeyPair(f.cert, f.key)
		if err != nil {
			return badUsage("--tls-cert and --tls-key: %v", err)
		}
		o.TLSConfig.Certificates = []tls.Certificate{pair}
	}
	return nil
}
