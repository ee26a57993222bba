package engine

// Fencing tokens in blocks: how a fenced lock is handed off inside this process without asking Redis for each token.
//
// Rules: only the attempt that takes over the record of the holder before, inside this process, draws a block: several
// consecutive tokens, which lie above every token drawn before. While the record is valid, no other process draws a
// token of this name, so the holds that the record is handed to may use the rest of the block in order. The rest
// belongs to that record alone, and is discarded when the record ends, for whatever reason: a later draw may be of
// another process, and its tokens are greater.

// A tokenBlock is what is left of the tokens that were drawn together.
type tokenBlock struct {
	next int64
	left int
}

// take returns the next token, or 0 if the block is empty.
func (b *tokenBlock) take() (token int64) {
	if b.left > 0 {
		token = b.next
		b.next++
		b.left--
	}
	return token
}
