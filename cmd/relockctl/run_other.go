//go:build !unix

package main

// How the command of run is told to end where there are no signals: it is killed. The system delivers Ctrl-C to all
// programs of a console.

import (
	"os"
	"syscall"
)

// forwarded are the signals that end a wait for the lock. The command gets them from the system.
var forwarded = []os.Signal{os.Interrupt, syscall.SIGTERM}

func (c *child) prepare() {}

func (c *child) forward(os.Signal) bool { return false }

func (c *child) signal(syscall.Signal) { _ = c.cmd.Process.Kill() }

func (c *child) left() []int { return nil }

func exitStatus(state *os.ProcessState) int { return state.ExitCode() }
