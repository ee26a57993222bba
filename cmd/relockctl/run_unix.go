//go:build unix

package main

// How the command of run, and what it has started, is told to end on Unix.
//
// Rules: a signal goes to all processes that the command has started, because a shell that is killed leaves the program
// that it waits for running. Without a terminal the command has a process group of its own, which gets signals at once.
// With one it stays in the group of relockctl, so that it can read from the terminal and Ctrl-Z stops it. There the
// kernel sends the signals of the keyboard to both. Processes outside of that group are found on Linux only.

import (
	"errors"
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
	c.adopt()
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

// forward passes on a signal that relockctl got, and reports whether it asks the command to end.
func (c *child) forward(s os.Signal) bool {
	key := s == syscall.SIGINT || s == syscall.SIGQUIT
	if key && !c.ownGroup { // the kernel has delivered it already
		return false
	}
	c.signal(s.(syscall.Signal))
	return key || s == syscall.SIGTERM
}

// signal sends a signal to the command and to all that it has started.
func (c *child) signal(s syscall.Signal) {
	if c.ownGroup && !c.noGroup { // all of the group at once
		_ = syscall.Kill(-c.cmd.Process.Pid, s) // an error means that there is no process left
	}
	others := c.others()
	// Later than the search, so that what it starts in answer to the signal does not get it, too.
	if group, _ := syscall.Getpgid(c.cmd.Process.Pid); !c.ownGroup || group != c.cmd.Process.Pid {
		_ = c.cmd.Process.Signal(s) // it may also have left its group
	}
	for _, p := range others {
		p.signal(s)
	}
}

// left returns the processes that the command, which has ended, has left running, as kill(2) takes them.
func (c *child) left() (left []int) {
	for _, p := range c.others() {
		left = append(left, p.pid)
	}
	if group := -c.cmd.Process.Pid; c.ownGroup && !c.noGroup {
		if c.noGroup = errors.Is(syscall.Kill(group, 0), syscall.ESRCH); !c.noGroup {
			left = append(left, group)
		}
	}
	return left
}

// exitStatus returns the exit status of the command, as a shell has it.
func exitStatus(state *os.ProcessState) int {
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return statusSignal + int(status.Signal())
	}
	return state.ExitCode()
}
