package testsql

import "syscall"

// endsWithThisProcess has Linux kill a program when this process ends.
func endsWithThisProcess() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
