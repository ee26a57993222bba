// Package interop tests that relock and Redisson share their locks: its tests run a Java service and relock on the same
// Redis. It is a module of its own and has nothing for users.
package interop

// The Java service, which is built and driven from here.
//
// Rules: Maven builds it once for every version of Redisson, into the user's cache. A service belongs to one test and
// never outlives it. Every command has a time limit.

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/testredis"
)

// versions are the versions of Redisson: the newest one, and one from before the sharded pub/sub and the unlock latch.
// For a Cluster, where the pub/sub has to be the same, the older one is only from before the latch.
var (
	versions        = []string{"4.7.0", "3.17.7"}
	clusterVersions = []string{"4.7.0", "3.23.5"}
)

// A setting has the options with which a Java service is started.
type setting struct {
	version  string
	watchdog time.Duration // 0 for 30s
	fairWait time.Duration // 0 for 5m; used only if the version has the option
	prefix   string        // the prefix of a NameMapper; "" for none
	redis    deployment
}

// A deployment is a Redis: a single server, several independent servers, or the nodes of a Cluster.
type deployment struct {
	addrs   []string
	cluster bool
}

// client returns a client of the Cluster or of the first server. The test closes it.
func (d deployment) client(t testing.TB) redis.UniversalClient {
	if d.cluster {
		rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: d.addrs})
		t.Cleanup(func() { _ = rdb.Close() })
		return rdb
	}
	return testredis.Client(t, d.addrs[0])
}

// onMasters returns what ask finds on the masters of rdb for name.
func onMasters(
	rdb redis.UniversalClient,
	name string,
	ask func(context.Context, *redis.Client) ([]string, error),
) []string {
	var mu sync.Mutex // guards found
	var found []string
	note := func(ctx context.Context, rdb *redis.Client) error {
		all, err := ask(ctx, rdb)
		mu.Lock()
		defer mu.Unlock()
		found = append(found, all...)
		return err
	}
	var err error
	if cluster, ok := rdb.(*redis.ClusterClient); ok {
		err = cluster.ForEachMaster(context.Background(), note)
	} else {
		err = note(context.Background(), rdb.(*redis.Client))
	}
	if err != nil {
		found = append(found, fmt.Sprint(name, " unknown: ", err))
	}
	return slices.DeleteFunc(found, func(s string) bool { return !strings.Contains(s, name) })
}

// keys returns the keys of rdb that belong to name, except for fencing counters.
func keys(rdb redis.UniversalClient, name string) []string {
	return slices.DeleteFunc(onMasters(rdb, name, func(ctx context.Context, rdb *redis.Client) ([]string, error) {
		return rdb.Keys(ctx, "*").Result()
	}), func(key string) bool { return strings.HasPrefix(key, "redisson_lock_token") })
}

// channels returns the channels of rdb that have subscribers and belong to name.
func channels(rdb redis.UniversalClient, name string) []string {
	return onMasters(rdb, name, func(ctx context.Context, master *redis.Client) ([]string, error) {
		if _, cluster := rdb.(*redis.ClusterClient); cluster {
			return master.PubSubShardChannels(ctx, "*").Result()
		}
		return master.PubSubChannels(ctx, "*").Result()
	})
}

// A java is a Java service.
type java struct {
	t       testing.TB
	version string // the version of Redisson
	cmd     *exec.Cmd
	in      io.WriteCloser

	*answers
}

// answers are the answers that a service has not sent yet.
type answers struct {
	mu      sync.Mutex // guards below
	last    int64
	waiting map[int64]chan answer
}

// A command is a request to the service; see Peer.java.
type command struct {
	ID      int64    `json:"id"`
	Op      string   `json:"op"`
	Kind    string   `json:"kind"`
	Name    string   `json:"name"`
	Names   []string `json:"names,omitempty"`
	Thread  int      `json:"thread"`
	Wait    int64    `json:"wait,omitempty"`  // milliseconds
	Lease   int64    `json:"lease,omitempty"` // milliseconds
	Counter string   `json:"counter,omitempty"`
	MS      int64    `json:"ms,omitempty"`
	Permits int      `json:"permits,omitempty"`
}

// An answer is a reply of the service.
type answer struct {
	ID     int64  `json:"id"`
	OK     bool   `json:"ok"`
	Value  bool   `json:"value"`
	Number int64  `json:"number"`
	Text   string `json:"text"`
	Error  string `json:"error"`
}

// startJava starts a service and waits until it is ready.
func startJava(t testing.TB, s setting) *java {
	t.Helper()
	dir := build(t, s.version)
	if s.watchdog == 0 {
		s.watchdog = 30 * time.Second
	}
	if s.fairWait == 0 {
		s.fairWait = 5 * time.Minute
	}
	mode := "single"
	if s.redis.cluster {
		mode = "cluster"
	}
	args := []string{
		"-Dprefix=" + s.prefix,
		"-Xmx256m",
		"-XX:+UseSerialGC",
		"-cp",
		filepath.Join(dir, "peer-1.jar") + ":" + filepath.Join(dir, "lib", "*"),
		"peer.Peer",
		fmt.Sprint(s.watchdog.Milliseconds()),
		fmt.Sprint(s.fairWait.Milliseconds()),
		mode,
	}
	for _, addr := range s.redis.addrs {
		args = append(args, "redis://"+addr)
	}
	j := &java{
		t:       t,
		version: s.version,
		cmd:     exec.Command("java", args...),
		answers: &answers{waiting: make(map[int64]chan answer)},
	}
	var err error
	if j.in, err = j.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := j.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	j.cmd.Stderr = io.Discard
	ready := j.expect(0)
	if err := j.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		j.read(out)
	}()
	t.Cleanup(func() {
		j.kill()
		<-done
		_ = j.cmd.Wait()
	})
	j.await(ready, time.Minute)
	return j
}

// kill kills the service at once (SIGKILL).
func (j *java) kill() { _ = j.cmd.Process.Kill() }

func (j *java) expect(id int64) chan answer {
	j.mu.Lock()
	defer j.mu.Unlock()
	c := make(chan answer, 1)
	j.waiting[id] = c
	return c
}

func (j *java) read(out io.Reader) {
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		var a answer
		if json.Unmarshal(lines.Bytes(), &a) != nil {
			continue // a line of a logger
		}
		j.mu.Lock()
		c := j.waiting[a.ID]
		delete(j.waiting, a.ID)
		j.mu.Unlock()
		if c != nil {
			c <- a
		}
	}
}

// start sends a command; the answer is delivered on the channel.
func (j *java) start(c command) <-chan answer {
	j.t.Helper()
	j.mu.Lock()
	j.last++
	c.ID = j.last
	j.mu.Unlock()
	a := j.expect(c.ID)
	line, err := json.Marshal(c)
	if err != nil {
		j.t.Fatal(err)
	}
	if _, err := j.in.Write(append(line, '\n')); err != nil {
		j.t.Fatal(err)
	}
	return a
}

func (j *java) await(c <-chan answer, limit time.Duration) answer {
	j.t.Helper()
	select {
	case a := <-c:
		return a
	case <-time.After(limit):
		j.t.Fatalf("the Java service does not answer within %v", limit)
		panic("unreachable")
	}
}

// do sends a command and waits for its answer.
func (j *java) do(c command) answer {
	j.t.Helper()
	return j.await(j.start(c), 30*time.Second)
}

// must runs a command that has to succeed.
func (j *java) must(c command) answer {
	j.t.Helper()
	a := j.do(c)
	if !a.OK {
		j.t.Fatalf("%s %s %s: %s", c.Op, c.Kind, c.Name, a.Error)
	}
	return a
}

var building sync.Mutex // one Maven at a time

// build builds the service for a version of Redisson and returns its path. Without Java and Maven the test is skipped,
// but it fails if the environment has CI=true.
func build(t testing.TB, version string) string {
	t.Helper()
	for _, tool := range []string{"java", "mvn"} {
		if _, err := exec.LookPath(tool); err != nil {
			if os.Getenv("CI") == "true" {
				t.Fatalf("this test needs Java and Maven: %v", err)
			}
			t.Skipf("this test needs Java and Maven: %v", err)
		}
	}
	building.Lock()
	defer building.Unlock()
	hash := sha256.New()
	for _, file := range []string{"java/pom.xml", "java/src/main/java/peer/Peer.java"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		hash.Write(text)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	dir := filepath.Join(cache, "relock-interop", hex.EncodeToString(hash.Sum(nil))[:12]+"-"+version)
	done := filepath.Join(dir, "done")
	if _, err := os.Stat(done); err == nil {
		return dir
	}
	out, err := exec.Command(
		"mvn",
		"-q",
		"-B",
		"-f",
		"java/pom.xml",
		"package",
		"-Dredisson.version="+version,
		"-DbuildTo="+dir,
	).CombinedOutput()
	if err != nil {
		t.Fatalf("mvn: %v\n%s", err, out)
	}
	if err := os.WriteFile(done, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}
