package testredis

import (
	"bufio"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestReadFrameFindsTheEnd(t *testing.T) {
	for _, frame := range []string{
		"+OK\r\n",
		"-ERR no\r\n",
		":-12\r\n",
		"_\r\n",
		"#t\r\n",
		",3.25\r\n",
		"(3492890328409238509324850943850943825024385\r\n",
		"$5\r\na\r\nb\x00\r\n",
		"$0\r\n\r\n",
		"$-1\r\n",
		"!5\r\nERR x\r\n",
		"=7\r\ntxt:abc\r\n",
		"*0\r\n",
		"*-1\r\n",
		"*3\r\n:1\r\n*1\r\n$2\r\n\r\n\r\n$-1\r\n",
		"~2\r\n+a\r\n+b\r\n",
		"%2\r\n+a\r\n:1\r\n+b\r\n%0\r\n",
		">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n",
		"|1\r\n+ttl\r\n:3600\r\n*1\r\n:2039123\r\n",
	} {
		r := bufio.NewReader(strings.NewReader(frame + "+next\r\n"))
		got, err := readFrame(r)
		assert.NoError(t, err, "%q", frame)
		assert.Equal(t, frame, string(got))
		rest, _ := io.ReadAll(r)
		assert.Equal(t, "+next\r\n", string(rest), "behind %q", frame)
	}
}
