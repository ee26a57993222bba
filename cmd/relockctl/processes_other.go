//go:build unix && !linux

package main

// What other systems than Linux lack: here a command goes on if relockctl is killed, and what it has started is found
// only by its process group.

import "syscall"

func (c *child) adopt() {}

type process struct{ pid int }

func (process) signal(syscall.Signal) {}

func (c *child) others() []process { return nil }
