package testredis

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Tests that are skipped because there is no server are counted at the end of the run.
func TestSkippedTestsAreCounted(t *testing.T) {
	t.Parallel()
	// With -test.v the line does not go to the terminal.
	cmd := exec.Command(os.Args[0], "-test.run=^TestDropRequestRunsNothing$", "-test.count=2", "-test.v")
	cmd.Env = append(os.Environ(), "CI=", "RELOCK_REDIS_SERVER="+filepath.Join(t.TempDir(), "redis-server"))
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	assert.Contains(t, string(out), "testredis: 2 tests skipped: no redis-server on the PATH")

	cmd = exec.Command(os.Args[0], "-test.run=^TestWithoutServerIsSkippedAndFailsInCI$")
	out, err = cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	assert.NotContains(t, string(out), "skipped", "nothing was")
}
