package main

// TLS, and what is wrong with it.
//
// Rules: each of the flags turns TLS on. A server that is spoken to in the wrong way may not answer at all. So after a
// second without an answer, and after a failure, it is asked in the other way. A server that answers never is.

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/redis/go-redis/v9"
)

// suspicious is how long a server may take for its first answer before it is asked in the other way, which may take as
// long.
const suspicious = time.Second

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

// reach calls ping, the first request to the servers at addrs, and returns its error, or the cause if it can be found.
func (p place) reach(
	ctx context.Context, addrs []string, o *redis.Options, ping func(ctx context.Context) error,
) error {
	pinging, cancel := context.WithCancel(ctx)
	defer cancel()
	answered := make(chan error, 1)
	go func() { answered <- ping(pinging) }()
	late := time.After(suspicious)
	for {
		select {
		case err := <-answered:
			if refusal := redis.Error(nil); err == nil || errors.As(err, &refusal) {
				return err
			}
			return cmp.Or(p.otherwise(ctx, addrs, o), p.ofCertificate(ctx, addrs[0], o, err), err)
		case <-late:
			if err := p.otherwise(ctx, addrs, o); err != nil {
				return err
			}
		}
	}
}

// otherwise returns an error if one of the servers speaks TLS and is not spoken to in TLS, or the other way round.
func (p place) otherwise(ctx context.Context, addrs []string, o *redis.Options) error {
	if o.Network == "unix" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, suspicious)
	defer cancel()
	for _, addr := range addrs {
		switch {
		case o.TLSConfig != nil && p.tls != (tlsFiles{}) && speaksPlain(ctx, addr):
			return errors.New("it does not speak TLS: leave out the flags that begin with --tls, and use redis:// in a URL")
		case o.TLSConfig != nil && speaksPlain(ctx, addr):
			return errors.New("it does not speak TLS: use redis:// instead of rediss://")
		case o.TLSConfig == nil && speaksTLS(ctx, addr):
			return errors.New("it speaks TLS: use a URL with rediss://, and perhaps --tls-ca, --tls-cert and --tls-key")
		}
	}
	return nil
}

func speaksPlain(ctx context.Context, addr string) bool {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return false
	}
	defer conn.Close()
	until, _ := ctx.Deadline()
	_ = conn.SetDeadline(until)
	answer := make([]byte, 1)
	_, err = conn.Write([]byte("PING\r\n"))
	if err == nil {
		_, err = conn.Read(answer)
	}
	return err == nil && (answer[0] == '+' || answer[0] == '-')
}

func speaksTLS(ctx context.Context, addr string) bool {
	// Nothing is sent to a server whose certificate was not verified.
	err := greeted(ctx, addr, &tls.Config{InsecureSkipVerify: true})
	return err == nil || isAlert(err)
}

// greeted returns the error of a connection to addr with TLS, on which nothing is sent. A server may refuse the
// certificate of a client after the handshake.
func greeted(ctx context.Context, addr string, config *tls.Config) error {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	secured := tls.Client(conn, config)
	if err := secured.HandshakeContext(ctx); err != nil {
		return err
	}
	_ = conn.SetDeadline(time.Now().Add(suspicious / 5))
	_, err = secured.Read(make([]byte, 1))
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// isAlert reports whether err is what the other side of a TLS connection says is wrong.
func isAlert(err error) bool {
	of := (*net.OpError)(nil)
	return errors.As(err, &of) && of.Op == "remote error"
}

// ofCertificate returns an error that tells what to do about err if it is about a certificate, or nil.
func (p place) ofCertificate(ctx context.Context, addr string, o *redis.Options, err error) error {
	if o.TLSConfig == nil {
		return nil
	}
	text := "its certificate is "
	switch {
	case errors.As(err, new(x509.UnknownAuthorityError)) && p.tls.ca == "":
		text += "not signed by a CA that this machine knows: --tls-ca names another one"
	case errors.As(err, new(x509.UnknownAuthorityError)):
		text += "not signed by a CA of --tls-ca"
	case errors.As(err, new(x509.HostnameError)):
		text += "for another name than that of the address"
	default:
		if !isAlert(err) { // a server that closes the connection may have said why before
			err = greeted(ctx, addr, o.TLSConfig)
		}
		switch {
		case err == nil || !isAlert(err):
			return nil
		case p.tls.cert == "":
			text = "it does not accept a client without a certificate: see --tls-cert and --tls-key"
		default:
			text = "it does not accept the certificate of --tls-cert"
		}
	}
	return fmt.Errorf("%s: %w", text, err)
}
