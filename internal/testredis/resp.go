package testredis

// Finding the ends of the frames of RESP2 and RESP3.
//
// Rules: frames are kept byte for byte. Only the arguments of a request are parsed. Streamed types, which Redis never
// sends, are an error.

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
)

// readFrame reads one frame with everything that belongs to it.
func readFrame(r *bufio.Reader) ([]byte, error) {
	return appendFrame(nil, r)
}

func appendFrame(raw []byte, r *bufio.Reader) ([]byte, error) {
	line, err := readLine(r)
	if err != nil {
		return nil, err
	}
	raw = append(raw, line...)
	children := 0
	switch line[0] {
	case '+', '-', ':', '_', '#', ',', '(': // the line is the whole frame
		return raw, nil
	case '$', '!', '=': // string, error, verbatim: this number of bytes and a line end
		n, err := length(line)
		if err != nil || n < 0 {
			return raw, err
		}
		start := len(raw)
		raw = append(raw, make([]byte, n+2)...)
		_, err = io.ReadFull(r, raw[start:])
		return raw, err
	case '*', '~', '>': // array, set, push
		children, err = length(line)
	case '%': // map
		children, err = length(line)
		children *= 2
	case '|': // attributes, and the frame that they describe
		children, err = length(line)
		children = 2*children + 1
	default:
		err = fmt.Errorf("not RESP: %q", line)
	}
	for ; err == nil && children > 0; children-- {
		raw, err = appendFrame(raw, r)
	}
	return raw, err
}

// readRequest reads a request, which is an array of bulk strings, and returns its arguments, too.
func readRequest(r *bufio.Reader) (raw []byte, cmd []string, err error) {
	raw, err = readLine(r)
	if err != nil {
		return nil, nil, err
	}
	if raw[0] != '*' {
		return nil, nil, fmt.Errorf("not a request: %q", raw)
	}
	n, err := length(raw)
	if err != nil {
		return nil, nil, err
	}
	for range n {
		arg, err := readFrame(r)
		if err != nil {
			return nil, nil, err
		}
		text, err := bulk(arg)
		if err != nil {
			return nil, nil, err
		}
		raw, cmd = append(raw, arg...), append(cmd, text)
	}
	return raw, cmd, nil
}

// bulk returns the content of a frame that is a bulk string.
func bulk(raw []byte) (string, error) {
	for i, b := range raw {
		if b == '\n' && raw[0] == '$' && i+1 < len(raw) {
			return string(raw[i+1 : len(raw)-2]), nil
		}
	}
	return "", fmt.Errorf("not a bulk string: %q", raw)
}

// readLine reads a line, which must have at least a type and a line end.
func readLine(r *bufio.Reader) ([]byte, error) {
	line, err := r.ReadBytes('\n')
	if err != nil {
		return nil, err
	}
	if len(line) < 3 || line[len(line)-2] != '\r' {
		return nil, fmt.Errorf("not RESP: %q", line)
	}
	return line, nil
}

// length returns the number in the first line of a frame. -1 is the null of RESP2.
func length(line []byte) (int, error) {
	n, err := strconv.Atoi(string(line[1 : len(line)-2]))
	if err != nil || n < -1 {
		return 0, fmt.Errorf("not RESP: %q", line)
	}
	return n, nil
}
