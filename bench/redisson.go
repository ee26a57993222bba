package main

// Redisson as a peer: a Java program (java/) does a whole slice of a workload by itself.
//
// Rules: Maven builds the program once, into the user's cache. A program belongs to one workload; one Redisson
// client in it stands for one process. The program ends when its standard input does, so it never outlives this
// process, and close ends it in any case.

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

//go:embed java/pom.xml java/src
var javaSource embed.FS

// buildRedisson returns the directory with the Java program, and builds it if the cache has none.
func buildRedisson(ctx context.Context) (string, error) {
	for _, tool := range []string{"java", "mvn"} {
		if _, err := exec.LookPath(tool); err != nil {
			return "", err
		}
	}
	source, err := fs.Sub(javaSource, "java")
	if err != nil {
		return "", err
	}
	hash := sha256.New()
	err = fs.WalkDir(source, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := fs.ReadFile(source, path)
		hash.Write(text)
		return err
	})
	if err != nil {
		return "", err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	cache = filepath.Join(cache, "relock-bench")
	dir := filepath.Join(cache, hex.EncodeToString(hash.Sum(nil))[:12])
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	building, err := os.MkdirTemp(cache, "building") // a build that is interrupted leaves no program
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(building)
	if err := os.CopyFS(filepath.Join(building, "source"), source); err != nil {
		return "", err
	}
	out, err := exec.CommandContext(ctx, "mvn", "-q", "-B", "-f", filepath.Join(building, "source", "pom.xml"),
		"package", "-DbuildTo="+filepath.Join(building, "built")).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("mvn: %w: %s", err, firstLine(out))
	}
	if err := os.Rename(filepath.Join(building, "built"), dir); err != nil {
		if _, err := os.Stat(dir); err == nil { // another process was faster
			return dir, nil
		}
		return "", err
	}
	return dir, nil
}

func firstLine(text []byte) string {
	line, _, _ := bytes.Cut(bytes.TrimSpace(text), []byte("\n"))
	return string(line)
}

// A program is a running Java program. One goroutine at a time uses it.
type program struct {
	in      io.WriteCloser
	answers chan []byte // closed when the program has ended
	ended   error       // the reason; to be read when answers is closed
	kill    func()
}

const (
	startup  = time.Minute      // how long a job without a duration of its own may take
	shutdown = 10 * time.Second // how long the shutdown may take
)

// startRedisson starts the program in dir with a number of clients, and makes it work until its code is compiled.
func startRedisson(ctx context.Context, dir string, s setting, clients int, warmUp time.Duration) (*program, error) {
	cmd := exec.Command("java", "-Xmx256m", "-XX:+UseSerialGC",
		"-cp", filepath.Join(dir, "bench-1.jar")+string(os.PathListSeparator)+filepath.Join(dir, "lib", "*"),
		"bench.Fleet", s.addr, fmt.Sprint(clients), fmt.Sprint(s.lease.Milliseconds()))
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &program{in: in, answers: make(chan []byte, 1), kill: func() { _ = cmd.Process.Kill() }}
	go p.read(out, func() error {
		err := cmd.Wait()
		if text := firstLine(complaints.Bytes()); err != nil && text != "" {
			err = fmt.Errorf("%w: %s", err, text)
		}
		return err
	})
	c := crowd{clients: clients, workers: max(1, 16/clients), names: 64}
	err = p.ask(ctx, startup, nil)
	if err == nil {
		_, err = p.crowd(c)(ctx, turn{took: warmUp})
	}
	if err != nil {
		p.close(shutdown)
		return nil, err
	}
	return p, nil
}

// read passes the answers on until there are no more, and then waits for the exit.
func (p *program) read(out io.Reader, wait func() error) {
	defer close(p.answers)
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		select {
		case p.answers <- bytes.Clone(lines.Bytes()):
		default: // no job asks for it: ask has given up
		}
	}
	p.ended = cmp.Or(lines.Err(), wait())
}

// ask sends a job, if there is one, and reads the answer to it. After an error the program cannot be used any more.
func (p *program) ask(ctx context.Context, limit time.Duration, answer any, job ...any) error {
	if len(job) > 0 {
		_, _ = fmt.Fprintln(p.in, job...) // if that fails, there are no more answers
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case line, ok := <-p.answers:
		switch {
		case ok:
			return parseAnswer(line, answer)
		case ctx.Err() != nil: // a terminal interrupts both
			return ctx.Err()
		}
		return fmt.Errorf("the Java program has ended: %w", cmp.Or(p.ended, errors.New("without an error")))
	case <-timer.C:
		return fmt.Errorf("the Java program has not answered within %v", limit)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// close makes the program shut its clients down, and kills it if that takes longer than limit.
func (p *program) close(limit time.Duration) {
	_ = p.in.Close()
	timer := time.AfterFunc(limit, p.kill)
	defer timer.Stop()
	for range p.answers { // until the end
	}
}

// parseAnswer reads a line of the program.
func parseAnswer(line []byte, answer any) error {
	var failed struct{ Error string }
	if err := json.Unmarshal(line, &failed); err != nil {
		return fmt.Errorf("the Java program answered %q: %w", line, err)
	}
	if failed.Error != "" {
		return fmt.Errorf("the Java program: %s", failed.Error)
	}
	if answer == nil {
		return nil
	}
	return json.Unmarshal(line, answer)
}

// crowd makes the program do the work of c.
func (p *program) crowd(c crowd) func(context.Context, turn) (tally, error) {
	return func(ctx context.Context, t turn) (got tally, err error) {
		err = p.ask(ctx, t.took+patience+startup, &got,
			"crowd", c.workers, c.names, c.section.Nanoseconds(), t.took.Nanoseconds(), patience.Nanoseconds())
		if err == nil && len(got.Sections) != c.clients*c.workers {
			err = fmt.Errorf("the Java program counted %d workers, not %d", len(got.Sections), c.clients*c.workers)
		}
		return got, err
	}
}

// woken makes the program do the work of w.
func (p *program) woken(w woken) func(context.Context, turn) (handed, error) {
	return func(ctx context.Context, t turn) (got handed, err error) {
		err = p.ask(ctx, t.took+patience+startup, &got,
			"woken", w.pause().Nanoseconds(), t.took.Nanoseconds(), patience.Nanoseconds())
		return got, err
	}
}

// handoffs makes the program do the work of h.
func (p *program) handoffs(h handoff) func(context.Context, turn) (handed, error) {
	return func(ctx context.Context, t turn) (got handed, err error) {
		err = p.ask(ctx, t.took+patience+startup, &got,
			"handoff", h.pause().Nanoseconds(), t.took.Nanoseconds(), patience.Nanoseconds())
		return got, err
	}
}
