//go:build !linux

package testredis

// Watching a child process where there is no Linux.

import (
	"os/exec"
	"strconv"
	"strings"
)

// dieWithUs does nothing: here a server outlives tests that run into a timeout.
func dieWithUs(*exec.Cmd) {}

// isStopped tells whether the process is stopped by a signal.
func isStopped(pid int) bool {
	state, err := exec.Command("ps", "-o", "state=", "-p", strconv.Itoa(pid)).Output()
	return err == nil && strings.HasPrefix(strings.TrimSpace(string(state)), "T")
}
