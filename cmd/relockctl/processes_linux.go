package main

// What only Linux has for run: the command dies with relockctl, and every process that it has started can be found.
//
// Rules: relockctl is the subreaper of the command, so that a process whose parent has ended becomes a child of
// relockctl, whatever session or group it is in. So relockctl has to reap such processes, each by its own number,
// because a wait for any child might take the status of the command. A number is of a process only together with the
// time of its start, because another process may get the number later.

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// adopt is called before the command is started. The kernel kills the command when the thread that starts it ends: see
// start.
func (c *child) adopt() {
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	c.cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	c.deaths = make(chan os.Signal, 1)
	signal.Notify(c.deaths, syscall.SIGCHLD)
	before := map[int]string{}
	for _, p := range c.below() { // of the shell that relockctl has replaced
		before[p.pid] = p.begun
	}
	c.before = before
}

// others returns the processes that the command has started, directly or not, except those in its own group. It reaps
// those that have ended. A look may miss a process that gets another parent meanwhile: only the kernel knows that there
// is none.
func (c *child) others() (others []process) {
	command, found := c.cmd.Process.Pid, false
	for looks := 0; !found && (looks < 2 || looks < 20 && c.hasChildren()); looks++ {
		for _, p := range c.below() {
			if p.pid == command {
				continue
			}
			reaped, _ := syscall.Wait4(p.pid, nil, syscall.WNOHANG, nil) // an error unless it is a child of relockctl
			if reaped == p.pid {
				continue
			}
			if found = true; !(c.ownGroup && p.group == command) {
				others = append(others, p)
			}
		}
	}
	return others
}

// hasChildren reports whether a process is left, if the command has ended and relockctl has no children of a shell.
func (c *child) hasChildren() bool {
	select {
	case <-c.ended:
	default:
		return false
	}
	err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	return err != unix.ECHILD && len(c.before) == 0
}

// A process is what /proc tells about one.
type process struct {
	pid, group int
	begun      string // when it was started
}

// stat returns what /proc has under a name, which is a number, and the parent. It returns zeros if that has ended.
func stat(name string) (p process, parent int) {
	text, _ := os.ReadFile("/proc/" + name + "/stat")
	// The name of the program, in parentheses, may have any characters. The state follows.
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 20 {
		return p, 0
	}
	_, _ = fmt.Sscan(string(text), &p.pid)
	_, _ = fmt.Sscan(fields[1]+" "+fields[2], &parent, &p.group)
	p.begun = fields[19]
	return p, parent
}

// signal sends a signal to p, but not to a process that has got its number meanwhile.
func (p process) signal(s syscall.Signal) {
	now, err := os.FindProcess(p.pid) // a handle, where the kernel has them, of the process that has the number now
	if err != nil {
		return
	}
	if same, _ := stat(strconv.Itoa(p.pid)); same.begun == p.begun {
		_ = now.Signal(s)
	}
	_ = now.Release()
}

// below returns the processes that relockctl has started, directly or not, except those in before. It returns none if
// /proc has the numbers of another namespace, where they are those of others.
func (c *child) below() []process {
	if self, _ := os.Readlink("/proc/self"); self != strconv.Itoa(os.Getpid()) {
		return nil
	}
	children := listed
	if _, err := os.Stat("/proc/thread-self/children"); err != nil {
		children = searched()
	}
	known := map[int]string{}
	maps.Copy(known, c.before)
	all := []process{{pid: os.Getpid()}}
	for i := 0; i < len(all); i++ {
		for _, name := range children(all[i].pid) {
			if p, parent := stat(name); parent == all[i].pid && p.begun != known[p.pid] {
				known[p.pid] = p.begun // a subreaper below relockctl may have adopted it meanwhile
				all = append(all, p)
			}
		}
	}
	return all[1:]
}

// listed returns the names in /proc of the children of a process, as the kernel lists them for each thread. That takes
// the time of a few system calls, however many processes the machine has: what starts another process and ends, again
// and again, outruns a search.
func listed(parent int) (names []string) {
	threads := fmt.Sprintf("/proc/%d/task/", parent)
	entries, _ := os.ReadDir(threads)
	for _, entry := range entries {
		text, _ := os.ReadFile(threads + entry.Name() + "/children")
		names = append(names, strings.Fields(string(text))...)
	}
	return names
}

// searched is listed for a kernel without these lists (CONFIG_PROC_CHILDREN): it looks at each process, once.
func searched() func(parent int) (names []string) {
	children := map[int][]string{}
	entries, _ := os.ReadDir("/proc")
	for _, entry := range entries {
		_, parent := stat(entry.Name())
		children[parent] = append(children[parent], entry.Name())
	}
	return func(parent int) []string { return children[parent] }
}
