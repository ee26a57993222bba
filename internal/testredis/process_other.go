//go:build !linux

package testredis

// Control of child processes on systems other than Linux.

import (
	"os/exec"
	"strconv"
	"strings"
)

// dieWithUs does nothing: on these systems a server outlives tests that run into a timeout.
func dieWithUs(*exec.Cmd) {}

// isStopped reports whether the process is stopped by a signal.
func isStopped(pid int) bool {
	state, err := exec.Command("ps", "-o", "state=", "-p", strconv.Itoa(pid)).Output()
	return err == nil && strings.HasPrefix(strings.TrimSpace(string(state)), "T")
}
