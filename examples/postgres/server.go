package main

// A PostgreSQL that runs as long as the program.
//
// Rules: it has a directory of its own, listens only on a socket in that directory, and ends with the program.
// PostgreSQL refuses to run as root: if the program is started by root, the server runs as an unprivileged user.

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

var errNoPostgres = errors.New(
	"no PostgreSQL is installed here, and DATABASE_URL names none (on Debian: apt-get install postgresql)",
)

// connectPostgres returns a connection to the database at DATABASE_URL, or to one that it starts, and a function that
// closes it.
func connectPostgres(ctx context.Context) (*pgx.Conn, func(), error) {
	if url := os.Getenv("DATABASE_URL"); url != "" {
		db, err := pgx.Connect(ctx, url)
		if err != nil {
			return nil, nil, err
		}
		return db, func() { db.Close(context.WithoutCancel(ctx)) }, nil
	}
	bin, err := findPostgres()
	if err != nil {
		return nil, nil, err
	}
	dir, err := os.MkdirTemp("", "relock-postgres-")
	if err != nil {
		return nil, nil, err
	}
	remove := func() { os.RemoveAll(dir) }
	who, err := unprivileged(dir)
	if err != nil {
		remove()
		return nil, nil, err
	}

	data := filepath.Join(dir, "data")
	initialize := exec.CommandContext(ctx, filepath.Join(bin, "initdb"),
		"--pgdata="+data, "--username=demo", "--auth=trust", "--no-sync", "--encoding=UTF8", "--locale=C")
	initialize.Dir, initialize.SysProcAttr = dir, who
	if said, err := initialize.CombinedOutput(); err != nil {
		remove()
		return nil, nil, fmt.Errorf("initdb: %w: %s", err, bytes.TrimSpace(said))
	}
	var log bytes.Buffer
	server := exec.CommandContext(context.WithoutCancel(ctx), filepath.Join(bin, "postgres"),
		"-D", data, "-k", dir, "-c", "listen_addresses=", "-c", "fsync=off")
	server.Dir, server.SysProcAttr, server.Stderr = dir, who, &log
	if err := server.Start(); err != nil {
		remove()
		return nil, nil, err
	}
	stop := func() {
		server.Process.Signal(syscall.SIGINT) // a fast and clean shutdown
		server.Wait()
		remove()
	}
	db, err := connectSoon(ctx, "host="+dir+" user=demo dbname=postgres")
	if err != nil {
		stop()
		return nil, nil, fmt.Errorf("%w: %s", err, bytes.TrimSpace(log.Bytes()))
	}
	return db, func() { db.Close(context.WithoutCancel(ctx)); stop() }, nil
}

// findPostgres returns the directory of the programs of PostgreSQL.
func findPostgres() (string, error) {
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin") // where Debian installs them, outside the PATH
	if path, err := exec.LookPath("initdb"); err == nil {
		found = append(found, filepath.Dir(path))
	}
	for _, bin := range found {
		if _, err := exec.LookPath(filepath.Join(bin, "initdb")); err != nil {
			continue
		}
		if _, err := exec.LookPath(filepath.Join(bin, "postgres")); err == nil {
			return bin, nil
		}
	}
	return "", errNoPostgres
}

// unprivileged returns the user as which the server runs, and makes that user the owner of dir.
func unprivileged(dir string) (*syscall.SysProcAttr, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	nobody, err := user.Lookup("nobody")
	if err != nil {
		return nil, err
	}
	uid, err := strconv.ParseUint(nobody.Uid, 10, 32)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.ParseUint(nobody.Gid, 10, 32)
	if err != nil {
		return nil, err
	}
	return &syscall.SysProcAttr{
			Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)},
		}, os.Chown(
			dir,
			int(uid),
			int(gid),
		)
}

// connectSoon tries until the server is up.
func connectSoon(ctx context.Context, where string) (*pgx.Conn, error) {
	for start := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		db, err := pgx.Connect(ctx, where)
		if err == nil || ctx.Err() != nil || time.Since(start) > 20*time.Second {
			return db, err
		}
	}
}
