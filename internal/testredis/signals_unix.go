//go:build unix

package testredis

import "syscall"

// The signals that pause a process and resume it.
const (
	sigstop = syscall.SIGSTOP
	sigcont = syscall.SIGCONT
)
