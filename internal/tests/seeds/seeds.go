// Package seeds plays the random tests of a suite. Each of them draws all that is random from a seed. The seeds are known
// ones, so that a test does the same in every run, unless a flag asks for others:
//
//	-SUITE.seed=7        plays this seed only
//	-SUITE.count=500     plays so many known seeds
//	-SUITE.explore=10m   plays new seeds for so long, and keeps those that fail in testdata/seeds/SUITE
//
// Without a flag a suite plays a number of seeds from 1 on, and those of which testdata/seeds/SUITE has a file. A seed
// that has failed becomes a test when its file is committed.
package seeds

import (
	"cmp"
	"flag"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// dir is where a package has the seeds that have failed. Its tests may change the working directory later.
var dir, _ = filepath.Abs("testdata/seeds")

// A Suite is a test, or a few of them, that plays seeds.
type Suite struct {
	Workers int // how many seeds are played at once; 0: one

	name    string
	only    *uint64
	count   *int
	explore *time.Duration
}

// New returns the suite of a name, which its flags begin with.
func New(name string) *Suite {
	return &Suite{
		name:    name,
		only:    flag.Uint64(name+".seed", 0, "the only seed that the suite "+name+" plays; 0: the known ones"),
		count:   flag.Int(name+".count", 0, "how many known seeds the suite "+name+" plays; 0: a few"),
		explore: flag.Duration(name+".explore", 0, "how long the suite "+name+" plays new seeds; 0: not at all"),
	}
}

// Of returns a part of the suite. The two have the same flags, and a part has seeds of its own that have failed.
func (s *Suite) Of(part string) *Suite {
	p := *s
	p.name = filepath.Join(s.name, part)
	return &p
}

// IsChosen reports whether a flag asks for other seeds than the known ones.
func (s *Suite) IsChosen() bool { return *s.only != 0 || *s.explore != 0 }

// A Sequence is what a test does with one seed.
type Sequence struct {
	*testing.T
	*Digest
	Seed uint64
	File string // what the file of the seed contains, if the seed has failed before
	kept string
}

// Keep has the file of the seed contain text if the seed fails.
func (s *Sequence) Keep(text string) { s.kept = text }

// SetRapid has the package rapid, which reads its seed from a flag, draw from this seed.
func (s *Sequence) SetRapid() {
	require.NoError(s, flag.Set("rapid.seed", strconv.FormatUint(s.Seed, 10)))
}

// Play plays so many known seeds, or what the flags ask for. It stops at the first one that fails.
func (s *Suite) Play(t *testing.T, count int, play func(s *Sequence)) {
	next, files := s.seeds(t, count)
	all := NewDigest(t, s.name)
	one := func(t *testing.T, seed uint64) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			q := &Sequence{T: t, Digest: &Digest{}, Seed: seed, File: files[seed]}
			defer func() {
				if t.Failed() && *s.explore > 0 {
					s.keep(t, q)
				}
			}()
			play(q)
			all.add(q.sum)
		})
	}
	if s.Workers < 2 {
		for seed := range next {
			one(t, seed)
		}
	} else {
		queue := make(chan uint64)
		t.Run("at once", func(t *testing.T) {
			for range s.Workers {
				t.Run("", func(t *testing.T) {
					t.Parallel()
					for seed := range queue {
						one(t, seed)
					}
				})
			}
			go func() {
				defer close(queue)
				for seed := range next {
					queue <- seed
				}
			}()
		})
	}
}

// seeds returns the seeds that are to be played, until t has failed, and the contents of the files that there are.
func (s *Suite) seeds(t *testing.T, count int) (next func(yield func(uint64) bool), files map[uint64]string) {
	files = s.files(t)
	switch {
	case *s.only != 0:
		return slices.Values([]uint64{*s.only}), files
	case *s.explore > 0:
		first, start := rand.Uint64N(1_000_000_000)+1, time.Now()
		t.Logf("%s: new seeds from %d", s.name, first)
		return func(yield func(uint64) bool) {
			for seed := first; time.Since(start) < *s.explore && !t.Failed() && yield(seed); seed++ {
			}
		}, nil
	}
	return func(yield func(uint64) bool) {
		var known []uint64
		for seed := range files {
			known = append(known, seed)
		}
		for seed := range uint64(cmp.Or(*s.count, count)) {
			known = append(known, seed+1)
		}
		slices.Sort(known)
		for _, seed := range slices.Compact(known) {
			if t.Failed() || !yield(seed) {
				return
			}
		}
	}, files
}

// files returns the contents of the files of the seeds that have failed.
func (s *Suite) files(t *testing.T) map[uint64]string {
	entries, err := os.ReadDir(filepath.Join(dir, s.name))
	if !os.IsNotExist(err) {
		require.NoError(t, err)
	}
	files := make(map[uint64]string)
	for _, entry := range entries {
		if entry.IsDir() { // of a part
			continue
		}
		seed, err := strconv.ParseUint(entry.Name(), 10, 64)
		require.NoError(t, err, "the name of a file in %s is a seed", dir)
		text, err := os.ReadFile(filepath.Join(dir, s.name, entry.Name()))
		require.NoError(t, err)
		files[seed] = string(text)
	}
	return files
}

// keep writes the file of a seed that has failed.
func (s *Suite) keep(t *testing.T, q *Sequence) {
	file := filepath.Join(dir, s.name, strconv.FormatUint(q.Seed, 10))
	err := os.MkdirAll(filepath.Dir(file), 0o777)
	if err == nil {
		err = os.WriteFile(file, []byte(cmp.Or(q.kept, t.Name()+"\n")), 0o666)
	}
	t.Logf("the seed is kept in %s: %v", file, err)
}

// A Digest is a number that is the same for two tests that have done the same.
type Digest struct {
	mu    sync.Mutex // guards below
	sum   uint64
	seeds int // how many of them are in it
}

// NewDigest returns a digest of what a test does, which is logged when the test ends. If RELOCK_DIGESTS names a file, it
// is appended to this file too.
func NewDigest(t *testing.T, name string) *Digest {
	d := &Digest{}
	t.Cleanup(func() {
		text := fmt.Sprintf("%s: digest %016x of %d seeds", name, d.sum, d.seeds)
		t.Log(text)
		if file := os.Getenv("RELOCK_DIGESTS"); file != "" && d.sum != 0 {
			f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o666)
			require.NoError(t, err)
			_, err = fmt.Fprintln(f, text)
			require.NoError(t, err)
			require.NoError(t, f.Close())
		}
	})
	return d
}

// Note adds something that has been done after the rest.
func (d *Digest) Note(what ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	h := fnv.New64a()
	fmt.Fprintln(h, append([]any{d.sum}, what...)...)
	d.sum = h.Sum64()
}

// add adds something that has been done at the same time as the rest.
func (d *Digest) add(sum uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sum += sum
	d.seeds++
}
