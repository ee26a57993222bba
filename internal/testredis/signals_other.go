//go:build !unix

package testredis

import "syscall"

// These systems cannot pause a process: sending a signal fails there. The package still has to compile.
const (
	sigstop = syscall.Signal(-1)
	sigcont = syscall.Signal(-1)
)
