//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package main

// Whether a file is a terminal, and how big.

import (
	"os"
	"syscall"
	"unsafe"
)

// size is how many columns and rows the terminal f has, if it is one.
func size(f *os.File) (columns, rows int, terminal bool) {
	var window struct{ rows, columns, width, height uint16 }
	_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, f.Fd(), syscall.TIOCGWINSZ, uintptr(unsafe.Pointer(&window)))
	return int(window.columns), int(window.rows), errno == 0
}
