//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package main

// Whether a file is a terminal, and how big.

import (
	"os"

	"golang.org/x/sys/unix"
)

// size is how many columns and rows the terminal f has, if it is one.
func size(f *os.File) (columns, rows int, terminal bool) {
	window, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0, 0, false
	}
	return int(window.Col), int(window.Row), true
}
