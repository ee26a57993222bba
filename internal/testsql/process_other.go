//go:build unix && !linux

package testsql

import "syscall"

// endsWithThisProcess does nothing here: the programs end when they are stopped.
func endsWithThisProcess() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }
