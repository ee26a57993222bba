//go:build unix

// Package testsql starts SQL databases for tests, examples and benchmarks.
//
// Rules: a server has a temporary directory of its own, listens only on a socket in it, and ends with the program that
// started it, however that ends. The servers refuse to run as root: if root starts them, they run as the user nobody.
// What they write is not kept when the machine fails.
package testsql

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// ErrNotInstalled is returned if the programs of the server are not on this machine.
var ErrNotInstalled = errors.New("not installed")

// StartPostgres starts PostgreSQL with these settings, such as max_connections=200. It returns where to connect, as pgx
// and lib/pq expect it, and a function that stops the server.
func StartPostgres(ctx context.Context, settings ...string) (dsn string, stop func(), err error) {
	bin, err := find("PostgreSQL", "postgresql", []string{"initdb", "postgres"}, "/usr/lib/postgresql/*/bin")
	if err != nil {
		return "", nil, err
	}
	h, err := newHome("postgres")
	if err != nil {
		return "", nil, err
	}
	data := filepath.Join(h.dir, "data")
	err = h.run(ctx, filepath.Join(bin, "initdb"), "--pgdata="+data, "--username=demo", "--auth=trust", "--no-sync",
		"--encoding=UTF8", "--locale=C")
	if err == nil {
		args := []string{"-D", data, "-k", h.dir, "-c", "listen_addresses=", "-c", "fsync=off"}
		for _, s := range settings {
			args = append(args, "-c", s)
		}
		err = h.start(ctx, "ready to accept connections", syscall.SIGINT, filepath.Join(bin, "postgres"), args...)
	}
	if err != nil {
		h.stop()
		return "", nil, err
	}
	return "host=" + h.dir + " user=demo dbname=postgres", h.stop, nil
}

// StartMariaDB starts MariaDB with these options, such as --innodb-snapshot-isolation=ON. It returns where to connect,
// as go-sql-driver/mysql expects it, and a function that stops the server.
func StartMariaDB(ctx context.Context, options ...string) (dsn string, stop func(), err error) {
	bin, err := find("MariaDB", "mariadb-server-core mariadb-client-core", []string{"mariadbd"}, "/usr/sbin")
	if err != nil {
		return "", nil, err
	}
	install, err := find("MariaDB", "mariadb-server-core mariadb-client-core", []string{"mariadb-install-db"}, "/usr/bin")
	if err != nil {
		return "", nil, err
	}
	h, err := newHome("mariadb")
	if err != nil {
		return "", nil, err
	}
	data, socket := filepath.Join(h.dir, "data"), filepath.Join(h.dir, "socket")
	err = h.run(ctx, filepath.Join(install, "mariadb-install-db"), "--no-defaults", "--datadir="+data,
		"--auth-root-authentication-method=normal", "--innodb-flush-method=nosync")
	if err == nil {
		args := append([]string{"--no-defaults", "--datadir=" + data, "--socket=" + socket, "--skip-networking",
			"--pid-file=" + filepath.Join(h.dir, "pid"), "--innodb-flush-log-at-trx-commit=0", "--innodb-flush-method=nosync",
			"--max-connections=300"}, options...)
		err = h.start(ctx, "ready for connections", syscall.SIGTERM, filepath.Join(bin, "mariadbd"), args...)
	}
	if err != nil {
		h.stop()
		return "", nil, err
	}
	return "root@unix(" + socket + ")/test", h.stop, nil
}

// find returns the directory that has all of the programs: one of the PATH, or one that matches the pattern, because
// Debian installs servers elsewhere.
func find(server, pkg string, programs []string, pattern string) (string, error) {
	dirs, _ := filepath.Glob(pattern)
	if path, err := exec.LookPath(programs[0]); err == nil {
		dirs = append(dirs, filepath.Dir(path))
	}
	for _, dir := range dirs {
		missing := 0
		for _, p := range programs {
			if _, err := exec.LookPath(filepath.Join(dir, p)); err != nil {
				missing++
			}
		}
		if missing == 0 {
			return dir, nil
		}
	}
	return "", fmt.Errorf("%s is %w (on Debian: apt-get install %s)", server, ErrNotInstalled, pkg)
}

// A home is the directory of a server, and its process.
type home struct {
	dir     string
	as      *syscall.Credential // or nil: as this process
	process *os.Process         // or nil
	ended   chan struct{}       // closed when the process has ended
	end     os.Signal           // asks for a fast and clean end
}

func newHome(name string) (*home, error) {
	dir, err := os.MkdirTemp("", "relock-"+name+"-")
	if err != nil {
		return nil, err
	}
	h := &home{dir: dir}
	if os.Geteuid() != 0 {
		return h, nil
	}
	nobody, err := user.Lookup("nobody")
	if err == nil {
		uid, _ := strconv.ParseUint(nobody.Uid, 10, 32) // numbers, on the systems on which these servers run
		gid, _ := strconv.ParseUint(nobody.Gid, 10, 32)
		h.as = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		err = os.Chown(dir, int(uid), int(gid))
	}
	if err != nil {
		h.stop()
		return nil, err
	}
	return h, nil
}

func (h *home) command(ctx context.Context, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = h.dir
	cmd.Env = append(os.Environ(), "HOME="+h.dir, "TMPDIR="+h.dir, "LC_ALL=C")
	cmd.SysProcAttr = endsWithThisProcess()
	cmd.SysProcAttr.Credential = h.as
	return cmd
}

// run runs a program to its end.
func (h *home) run(ctx context.Context, program string, args ...string) error {
	if said, err := h.command(ctx, program, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", filepath.Base(program), err, bytes.TrimSpace(said))
	}
	return nil
}

// start starts the server, and returns when its log has the text that says that it is ready.
func (h *home) start(ctx context.Context, ready string, end os.Signal, program string, args ...string) error {
	cmd := h.command(context.WithoutCancel(ctx), program, args...)
	log, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	h.process, h.ended, h.end = cmd.Process, make(chan struct{}), end
	isReady, said := make(chan struct{}), make(chan string, 1)
	go func() { // until the server ends
		defer close(h.ended)
		var lines strings.Builder
		scanner := bufio.NewScanner(log)
		for scanner.Scan() {
			fmt.Fprintln(&lines, scanner.Text())
			if strings.Contains(scanner.Text(), ready) {
				close(isReady)
				break
			}
		}
		said <- lines.String()
		_, _ = io.Copy(io.Discard, log)
		_ = cmd.Wait() // an error: it was told to end
	}()
	select {
	case <-isReady:
		return nil
	case <-h.ended:
		return fmt.Errorf("%s: %s", filepath.Base(program), <-said)
	case <-ctx.Done():
		return fmt.Errorf("%s: %w", filepath.Base(program), ctx.Err())
	case <-time.After(time.Minute):
		return fmt.Errorf("%s: not ready after a minute", filepath.Base(program))
	}
}

// stop stops the server, if it was started, and deletes its directory.
func (h *home) stop() {
	if h.process != nil {
		_ = h.process.Signal(h.end) // an error: it has ended
		select {
		case <-h.ended:
		case <-time.After(10 * time.Second):
			_ = h.process.Kill()
			<-h.ended
		}
	}
	_ = os.RemoveAll(h.dir)
}
