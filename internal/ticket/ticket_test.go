package ticket

import (
	"encoding/base64"
	"encoding/binary"
	"hash/crc32"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func some() Ticket {
	return Ticket{
		Type: "lock", Key: "app:orders:42", ID: "7a1f0b0e-6f0f-4f54-9a0e-3c8f3d1f6a11:0:0123456789012345", Token: 1764061234567890,
		MaxEnd: 1764061234567, KeepEnd: 1764061234000,
	}
}

func TestTicketIsReadAsItWasWritten(t *testing.T) {
	t.Parallel()
	full := some()
	full.MinEnd, full.Token = math.MaxInt64, math.MaxInt64
	strange := Ticket{Type: "semaphore", Key: "\x00 ü\xff\n{tag}", ID: "id+1000", KeepEnd: 1}
	for name, want := range map[string]Ticket{"some": some(), "full": full, "strange": strange, "empty": {}} {
		text, err := want.Encode()
		require.NoError(t, err, name)
		assert.NotContains(t, strings.Map(func(r rune) rune {
			if r > ' ' && r < 0x7f {
				return -1
			}
			return 'x'
		}, text), "x", "%s: %q is not printable ASCII", name, text)
		got, err := Decode(text)
		require.NoError(t, err, name)
		assert.Equal(t, want, got, name)
	}
}

// Each byte of a ticket counts: whatever is changed, cut off or added, the text is no other ticket.
func TestDamagedTicketIsRefused(t *testing.T) {
	t.Parallel()
	ticket := some()
	text, err := ticket.Encode()
	require.NoError(t, err)
	for i := range text {
		for _, c := range []byte{'A', 'z', '_', ' ', '\n', text[i] ^ 1, text[i] ^ 0x20} {
			changed := text[:i] + string(rune(c)) + text[i+1:]
			if changed != text {
				_, err := Decode(changed)
				assert.Error(t, err, "byte %d is %q", i, c)
			}
		}
		_, err := Decode(text[:i])
		assert.Error(t, err, "the first %d bytes", i)
	}
	for _, other := range []string{text + "A", text + "=", " " + text, text + "\n", strings.ToUpper(text), "", "relock", "relock1."} {
		_, err := Decode(other)
		assert.Error(t, err, "%q", other)
	}
	_, err = Decode(strings.Replace(text, "relock1.", "relock2.", 1))
	assert.ErrorIs(t, err, ErrVersion)
	_, err = Decode(text + "A")
	assert.ErrorIs(t, err, ErrDamaged)
	_, err = Decode(text + strings.Repeat("A", MaxSize))
	assert.ErrorIs(t, err, ErrDamaged)
}

// A text that has a right checksum is a ticket only if it is one that Encode writes: nothing follows the ticket, it is
// not longer than MaxSize, and the bits behind the last byte are 0.
func TestTextThatEncodeWouldNotWriteIsRefused(t *testing.T) {
	t.Parallel()
	for n := range 3 { // so that each number of bits is left in the last character
		ticket := some()
		ticket.Key += strings.Repeat("k", n)
		text, err := ticket.Encode()
		require.NoError(t, err)
		body, err := base64.RawURLEncoding.DecodeString(strings.TrimPrefix(text, version))
		require.NoError(t, err)
		with := func(more string) string {
			longer := append(slices.Clone(body), more...)
			binary.BigEndian.PutUint32(longer, crc32.ChecksumIEEE(longer[4:]))
			return version + base64.RawURLEncoding.EncodeToString(longer)
		}
		read, err := Decode(with(""))
		require.NoError(t, err)
		require.Equal(t, ticket, read)
		_, err = Decode(with("\x00"))
		assert.ErrorIs(t, err, ErrDamaged, "a byte follows")

		if len(body)%3 != 0 {
			const digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
			last := len(text) - 1
			same := text[:last] + string(digits[strings.IndexByte(digits, text[last])+1])
			_, err = Decode(same)
			assert.ErrorIs(t, err, ErrDamaged, "another text with the same bytes: %d are left", len(body)%3)
		}

		long := ticket
		long.Key = strings.Repeat("k", MaxSize)
		body = make([]byte, 4)
		for _, text := range []string{long.Type, long.Key, long.ID} {
			body = append(binary.AppendUvarint(body, uint64(len(text))), text...)
		}
		for _, n := range []int64{long.Token, long.MaxEnd, long.MinEnd, long.KeepEnd} {
			body = binary.AppendVarint(body, n)
		}
		_, err = Decode(with(""))
		assert.ErrorIs(t, err, ErrDamaged, "longer than MaxSize")
	}
}

func TestTicketHasAtMostMaxSize(t *testing.T) {
	t.Parallel()
	ticket, longest := some(), 0
	for n := range MaxSize {
		ticket.Key = strings.Repeat("k", n)
		text, err := ticket.Encode()
		if err != nil {
			require.ErrorIs(t, err, ErrTooLong)
			continue
		}
		require.Equal(t, n, max(n, longest), "a longer key fits")
		require.LessOrEqual(t, len(text), MaxSize)
		longest = n
	}
	assert.Greater(t, longest, 250, "bytes of the longest key")
}

func FuzzTicket(f *testing.F) {
	ticket := some()
	text, err := ticket.Encode()
	require.NoError(f, err)
	f.Add(text)
	f.Fuzz(func(t *testing.T, text string) {
		read, err := Decode(text)
		if err != nil {
			return
		}
		again, err := read.Encode()
		require.NoError(t, err)
		_, err = Decode(again)
		require.NoError(t, err)
	})
}
