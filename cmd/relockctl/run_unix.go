//go:build unix

package main

// How the command of run is told to end on Unix.
//
// Rules: without a terminal the command has a process group of its own, and a signal that ends it goes to the group,
// because a shell that is killed leaves the program that it waits for running. With a terminal the command stays in the
// group of relockctl, so that it can read from the terminal and Ctrl-Z stops it. There the kernel sends the signals of
// the keyboard to both.

import (
	"os"
	"syscall"
)

// forwarded are the signals that the command gets when relockctl does.
var forwarded = []os.Signal{
	syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2,
}

// prepare is called before the command is started.
func (c *child) prepare() {
	c.ownGroup = !hasTerminal()
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: c.ownGroup}
	dieWithUs(c.cmd.SysProcAttr)
}

// hasTerminal reports whether this process has a controlling terminal, whatever its input and output are.
func hasTerminal() bool {
	terminal, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
	if err != nil {
		return false
	}
	terminal.Close()
	return true
}

// forward passes on a signal that relockctl got. The command may have ended.
func (c *child) forward(s os.Signal) {
	switch s {
	case syscall.SIGINT, syscall.SIGQUIT:
		if c.ownGroup { // otherwise the kernel has delivered it already
			c.signalAll(s.(syscall.Signal))
		}
	case syscall.SIGTERM:
		c.signalAll(syscall.SIGTERM)
	default: // has a meaning for the command only
		_ = c.cmd.Process.Signal(s)
	}
}

func (c *child) terminate() { c.signalAll(syscall.SIGTERM) }

func (c *child) kill() { c.signalAll(syscall.SIGKILL) }

// signalAll sends a signal to the command and, if it has a process group of its own, to the group.
func (c *child) signalAll(s syscall.Signal) {
	if c.ownGroup {
		_ = syscall.Kill(-c.cmd.Process.Pid, s) // an error means that there is no process left
		return
	}
	_ = c.cmd.Process.Signal(s)
}

// exitStatus returns the exit status of the command, as a shell has it.
func exitStatus(state *os.ProcessState) int {
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return statusSignal + int(status.Signal())
	}
	return state.ExitCode()
}
