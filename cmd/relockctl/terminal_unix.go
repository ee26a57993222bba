//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package main

// Whether a file is a terminal, and how high.

import (
	"os"
	"syscall"
	"unsafe"
)

// size is how many rows the terminal f has, if it is one.
func size(f *os.File) (rows int, terminal bool) {
	var window struct{ rows, columns, width, height uint16 }
	_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, f.Fd(), syscall.TIOCGWINSZ, uintptr(unsafe.Pointer(&window)))
	return int(window.rows), errno == 0
}
