package main

// The command serve: the page of package relockui.
//
// Rules: an address that other machines can reach needs a flag, because the page has no authentication. The address is
// checked before the port is open. The program prints the URL when the port is open, and ends with Ctrl-C.

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/relock-go/relock/relockui"
)

const defaultPage = "127.0.0.1:8080"

// A pageOptions has the flags of serve.
type pageOptions struct {
	addr        string
	tcp         *net.TCPAddr // addr, once it was checked
	expose      bool
	hosts       []string
	allowUnlock bool
}

// check returns the address of the page, or an error if the page may not be served there.
func (o *pageOptions) check() (*net.TCPAddr, error) {
	addr, err := net.ResolveTCPAddr("tcp", o.addr)
	switch {
	case err != nil:
		return nil, badUsage("serve: --addr %s: %v", quote(o.addr), err)
	case !o.expose && !addr.IP.IsLoopback():
		return nil, badUsage("serve: --addr %s is not a loopback address, and the page has no authentication: "+
			"--expose allows it (the address of Redis is --url, or --addr in front of serve)", quote(o.addr))
	}
	return addr, nil
}

// linkHost returns the host and the port of the URL of the page. The page is not served under an address that stands
// for all addresses of the host.
func linkHost(addr *net.TCPAddr, hosts []string) string {
	if !addr.IP.IsUnspecified() {
		return addr.String()
	}
	host := strings.Trim(append(hosts, "localhost")[0], "[]")
	return net.JoinHostPort(host, strconv.Itoa(addr.Port))
}

// serve serves the page until ctx is done.
func (p *program) serve(ctx context.Context, pattern string) error {
	addr := p.page.tcp
	options := []relockui.Option{
		relockui.WithPattern(pattern), relockui.WithInterval(p.every), relockui.WithTitle("Locks at " + p.redis.where),
		relockui.WithLogger(slog.New(slog.NewTextHandler(p.err, nil))), relockui.WithHosts(p.page.hosts...),
	}
	everywhere := len(addr.IP) == 0 || addr.IP.IsUnspecified()
	if !everywhere {
		options = append(options, relockui.WithHosts(addr.IP.String()))
	}
	if p.page.allowUnlock {
		options = append(options, relockui.WithForcedRelease())
	}
	page, err := relockui.New(p.redis.rdb, options...)
	if err != nil {
		return err
	}
	defer page.Close()
	listener, err := net.ListenTCP("tcp", addr)
	if err != nil {
		return fmt.Errorf("serve: %w", err)
	}
	if _, err := fmt.Fprintf(p.out, "http://%s/\n", linkHost(listener.Addr().(*net.TCPAddr), p.page.hosts)); err != nil {
		listener.Close()
		return err
	}
	may := "cannot release them: --allow-unlock allows it"
	if p.page.allowUnlock {
		may = "can release them by force"
	}
	fmt.Fprintf(p.err, "The page shows the locks at %s, and %s. Ctrl-C ends.\n", p.redis.where, may)
	if everywhere && len(p.page.hosts) == 0 {
		fmt.Fprintln(p.err, "It answers only requests for localhost, 127.0.0.1 and [::1]: "+
			"pass the names by which other machines know this host with --hosts.")
	}
	server := &http.Server{
		Handler: page, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 64 << 10,
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError), // of clients that misbehave
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	select {
	case err := <-served:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}
	page.Close() // which ends the streams; Shutdown waits for them
	ending, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	err = server.Shutdown(ending)
	if served := <-served; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return err
}
