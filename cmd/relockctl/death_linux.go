package main

import "syscall"

// dieWithUs makes the kernel kill the command when the thread that starts it ends: see start.
func dieWithUs(attributes *syscall.SysProcAttr) { attributes.Pdeathsig = syscall.SIGKILL }
